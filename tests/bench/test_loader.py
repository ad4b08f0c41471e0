"""The bench of the loader, made small: every figure is there and says what it compares."""

import math

import pytest
import torch

import loader


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"IMAGES": 16, "HEIGHT": 40, "WIDTH": 60, "SIDE": 16, "BATCH": 4, "BLOCK": 2, "ALTERNATIONS": 2}
    for name, value in {**sizes, "WORKERS": 1, "SETTLE_S": 0.05}.items():
        monkeypatch.setattr(loader, name, value)


@pytest.mark.usefixtures("small")
def test_every_figure_is_measured() -> None:
    figures = {figure.name: figure for figure in loader.measure()}
    assert [name for name, figure in figures.items() if figure.limit is not None] == [
        "loader_over_bare_transform"
    ]
    assert figures["loader_over_bare_transform"].at_least
    assert set(figures) >= {
        "loader_decoding_over_bare_decoding",
        "loader_over_bare_decoding",
        "bare_transform_over_bare_decoding",
        "loader_images_per_s",
        "bare_decoding_images_per_s",
    }
    assert all(math.isfinite(figure.value) and figure.value > 0 for figure in figures.values())
    assert "in 2 pairs" in figures["loader_over_bare_decoding"].detail


def test_photographs_are_of_the_size_of_imagenets() -> None:
    contents = [loader.photograph(number) for number in range(3)]
    assert all(80_000 < len(content) < 120_000 for content in contents)
    assert loader.decoded(contents[0]).shape == (3, 375, 500)
    assert not torch.equal(loader.decoded(contents[0]), loader.decoded(contents[1]))


def test_a_ratio_is_of_rates_of_the_same_turn() -> None:
    took = {
        "bare decoding": [1.0, 2.0, 1.0],
        "bare decoding and transform": [2.0, 4.0, 2.0],
        "loader, decoding": [2.0, 4.0, 1.0],
        "loader": [2.5, 4.0, 4.0],
    }
    found = {figure.name: figure.value for figure in loader._ratios(took)}
    assert found["loader_over_bare_transform"] == 0.8
    assert found["loader_decoding_over_bare_decoding"] == 0.5
    assert found["loader_over_bare_decoding"] == 0.4
    assert found["bare_transform_over_bare_decoding"] == 0.5
