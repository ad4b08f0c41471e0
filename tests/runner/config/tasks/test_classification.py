"""Top-1 and top-5: who is right, what is counted, and the smoothed loss."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from daso_bench.runner.config.tasks.classification import Classification

TASK = Classification(classes=7)


def outputs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_the_label_counts_among_the_first_five_by_hand():
    """Outputs 7, 6, …, 1 for classes 0, 1, …, 6: labels 0 to 4 are among the first five, 0 alone is right."""
    falling = outputs(*[[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]] * 7)
    counts = TASK.count(falling, torch.arange(7))
    assert counts.dtype == torch.int64
    assert counts.tolist() == [1, 5]
    assert TASK.numbers(counts, 7) == {"accuracy": 1 / 7, "correct": 1, "count": 7, "top5": 5 / 7}


def test_of_equal_outputs_the_first_is_the_higher_for_both_counts():
    """A model that says the same of all classes is not right about all of them."""
    assert TASK.count(torch.zeros(7, 7), torch.arange(7)).tolist() == [1, 5]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_are_wrong_for_both_counts(wrong: float):
    one = outputs([9.0, 0, 0, 0, 0, 0, 0], [9.0, wrong, 0, 0, 0, 0, 0])
    assert TASK.count(one, torch.tensor([0, 0])).tolist() == [1, 1]


def test_counts_agree_with_torch_topk():
    generator = torch.Generator().manual_seed(0)
    some, labels = torch.randn(200, 20, generator=generator), torch.randint(20, (200,), generator=generator)
    among = (some.topk(5).indices == labels[:, None]).any(1)
    right = some.argmax(1) == labels
    assert Classification(classes=20).count(some, labels).tolist() == [int(right.sum()), int(among.sum())]


@pytest.mark.parametrize("classes", [2, 5])
def test_up_to_five_classes_have_no_top5(classes: int):
    task = Classification(classes=classes)
    assert task.nothing().tolist() == [0]
    counts = task.count(torch.eye(classes), torch.zeros(classes, dtype=torch.int64))
    assert task.numbers(counts, classes) == {"accuracy": 1 / classes, "correct": 1, "count": classes}


def test_of_no_sample_shares_are_nan():
    found = TASK.numbers(TASK.nothing(), 0)
    assert (found["correct"], found["count"]) == (0, 0)
    assert math.isnan(found["accuracy"])
    assert math.isnan(found["top5"])


def test_label_smoothing_is_part_of_the_criterion_and_not_of_the_evaluation():
    """ε = 0.3 of two classes: 0.85 of the label, 0.15 of the other."""
    task, some = Classification(classes=2, label_smoothing=0.3), outputs([1.0, 3.0]).double()
    logs = functional.log_softmax(some, 1)[0]
    label = torch.tensor([1])
    assert task.criterion()(some, label).item() == pytest.approx(-(0.85 * logs[1] + 0.15 * logs[0]).item())
    assert task.loss_sum(some, label).item() == pytest.approx(-logs[1].item())


def test_noise_has_every_class_in_turn():
    assert TASK.noise(9, 4, 4).tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert TASK.evaluation_batch(32, 32) == TASK.evaluation_batch(2000, 2000) == 256
