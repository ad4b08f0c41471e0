"""Pack and unpack walk one table: a round trip changes nothing, whatever the tensors are like."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from daso_bench.strategies.layout import Layout

CPU = torch.device("cpu")

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])


def tensor(shape: tuple[int, ...], dtype: torch.dtype, transposed: bool, seed: int) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.transpose(0, 1) if transposed and made.dim() > 1 else made


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(SHAPES, DTYPES, st.booleans()), max_size=6))
def test_round_trip(specs):
    tensors = [tensor(*spec, seed=place) for place, spec in enumerate(specs)]
    before = [t.clone() for t in tensors]
    layout = Layout(((f"t{place}", t) for place, t in enumerate(tensors)), CPU)
    assert layout.numel == sum(t.numel() for t in tensors)
    flat = layout.pack(layout.empty(extra=2).fill_(7))
    assert flat[layout.numel :].tolist() == [7, 7], "what follows the table is left alone"
    for t in tensors:
        t.zero_()
    layout.unpack(flat)
    assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))
    wide = any(t.dtype == torch.float64 for t in tensors)
    assert layout.dtype == (torch.float64 if wide else torch.float32)


def test_order_of_the_flat_vector():
    layout = Layout([("a", torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()), ("b", torch.tensor(5.0))], CPU)
    assert layout.pack().tolist() == [1, 3, 2, 4, 5]


def test_digest_tells_tables_apart():
    def digest(*named: tuple[str, Tensor]) -> int:
        return Layout(named, CPU).digest()

    one = digest(("a", torch.zeros(2, 3)))
    assert one == digest(("a", torch.ones(2, 3)))
    for other in (
        ("b", torch.zeros(2, 3)),
        ("a", torch.zeros(3, 2)),
        ("a", torch.zeros(2, 3, dtype=torch.float64)),
    ):
        assert digest(other) != one
    assert 0 <= one < 2**62, "fits a signed 64-bit integer"


def test_integers_are_refused():
    with pytest.raises(ValueError, match="counter: only floating-point"):
        Layout([("counter", torch.zeros(1, dtype=torch.int64))], CPU)


def test_tensors_in_one_memory_pack_and_unpack_as_before():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    layout = Layout(model.named_parameters(), CPU)
    before = layout.pack()
    layout.lay_out()
    home = layout.home_now()
    assert home is not None
    assert torch.equal(layout.pack(), before)
    layout.unpack(before + 1)
    assert torch.equal(home, before + 1)
    assert torch.equal(layout.tensors[-1], before[-1:] + 1)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), before + 1)


def test_a_tensor_that_somebody_moved_is_found_again():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    layout = Layout(model.named_parameters(), CPU)
    layout.lay_out()
    layout.tensors[0].data = torch.full((2, 3), 7.0)
    assert layout.home_now() is None
    assert layout.pack()[:6].tolist() == [7.0] * 6
    layout.unpack(torch.zeros(layout.numel))
    assert not layout.tensors[0].any().item()


def test_tensors_of_several_kinds_stay_where_they_are():
    mixed = Layout([("a", torch.zeros(2)), ("b", torch.zeros(2, dtype=torch.float64))], CPU)
    mixed.lay_out()
    turned = Layout([("a", torch.zeros(2, 3).t())], CPU)
    turned.lay_out()
    assert mixed.home_now() is None
    assert turned.home_now() is None
