"""mIoU from summed confusion matrices, and a loss in which every image counts alike."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from runs import config, evaluations  # pyright: ignore[reportMissingImports] (on the path by conftest.py)
from torch import Tensor
from torch.nn.functional import one_hot

from daso_bench.datasets.shapes import Shapes
from daso_bench.models.small import SmallFCN
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.tasks import Segmentation, image_losses
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.runner.training.evaluation import score

TASK = Segmentation(classes=3)
NONE = 255


def saying(predicted: Tensor, classes: int = 3) -> Tensor:
    """Outputs [b, classes, H, W] that say `predicted` [b, H, W]."""
    return one_hot(predicted, classes).permute(0, 3, 1, 2).float()


def numbers(predicted: list[list[int]], labels: list[list[int]], task: Segmentation = TASK) -> dict[str, Any]:
    """Of one image."""
    counts = task.count(saying(torch.tensor([predicted]), task.classes), torch.tensor([labels]))
    return task.numbers(counts, 1)


def test_miou_by_hand():
    """Class 0: 2 of 2 + 1, class 1: 1 of 1 + 2, class 2: 2 of 2 + 1; unlabelled pixels count nowhere."""
    found = numbers([[0, 0, 0], [1, 1, 2], [2, 2, 0]], [[0, 0, 1], [1, 2, 2], [NONE, 2, NONE]])
    assert found == {
        "miou": pytest.approx((2 / 3 + 1 / 3 + 2 / 3) / 3),
        "pixel_accuracy": pytest.approx(5 / 7),
        "count": 1,
    }


def test_a_class_in_neither_labels_nor_predictions_is_left_out_and_one_in_either_is_not():
    assert numbers([[0, 0]], [[0, 0]])["miou"] == 1
    assert numbers([[0, 1]], [[0, 0]])["miou"] == pytest.approx((1 / 2 + 0) / 2), "predicted alone"
    assert numbers([[0, 0]], [[0, 1]])["miou"] == pytest.approx((1 / 2 + 0) / 2), "labelled alone"
    assert numbers([[0, 2]], [[0, NONE]])["miou"] == 1, "predicted where nobody knows"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_are_wrong_and_no_class(wrong: float):
    """The label's class misses the pixel; no class is charged with a false one."""
    outputs = saying(torch.tensor([[[0, 0, 1, 1]]]))
    outputs[0, 2, 0, 1] = wrong
    found = TASK.numbers(TASK.count(outputs, torch.tensor([[[0, 0, 1, 1]]])), 1)
    assert found["miou"] == pytest.approx((1 / 2 + 1) / 2)
    assert found["pixel_accuracy"] == 3 / 4


def by_sets(predicted: Tensor, labels: Tensor, classes: int) -> float:
    """mIoU as the definition says it: of sets of pixels, class by class."""
    known = (labels != NONE).numpy().ravel()
    p, y = predicted.numpy().ravel()[known], labels.numpy().ravel()[known]
    found = []
    for c in range(classes):
        union = np.flatnonzero((p == c) | (y == c))
        if len(union):
            found.append(len(np.intersect1d(np.flatnonzero(p == c), np.flatnonzero(y == c))) / len(union))
    return float(np.mean(found))


@pytest.mark.parametrize("classes", [2, 19])
def test_the_sum_of_batches_agrees_with_sets_of_all_pixels(classes: int):
    generator = torch.Generator().manual_seed(classes)
    task = Segmentation(classes=classes)
    predicted = torch.randint(classes, (11, 6, 5), generator=generator)
    labels = torch.randint(classes, (11, 6, 5), generator=generator)
    labels = torch.where(torch.rand(11, 6, 5, generator=generator) < 0.6, predicted, labels)
    labels[torch.rand(11, 6, 5, generator=generator) < 0.2] = NONE
    counts = task.nothing()
    for piece in torch.arange(11).split(4):
        counts += task.count(saying(predicted[piece], classes), labels[piece])
    assert task.numbers(counts, 11)["miou"] == pytest.approx(by_sets(predicted, labels, classes), abs=1e-12)


def test_masks_whose_numbers_are_no_class_are_refused():
    with pytest.raises(RuntimeError):
        TASK.count(saying(torch.tensor([[[0]]])), torch.tensor([[[3]]]))
    with pytest.raises(ValueError, match=r"^classes=256: must be <= 255"):
        Segmentation(classes=256)


def test_an_image_counts_alike_however_many_of_its_pixels_are_labelled():
    outputs = torch.randn(3, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    masks = torch.tensor([[[0, 1], [2, 0]], [[1, NONE], [NONE, NONE]], [[NONE, NONE], [NONE, NONE]]])
    logs = outputs.log_softmax(1)
    first = -(logs[0, 0, 0, 0] + logs[0, 1, 0, 1] + logs[0, 2, 1, 0] + logs[0, 0, 1, 1]) / 4
    second = -logs[1, 1, 0, 0]
    assert torch.allclose(image_losses(outputs, masks), torch.stack([first, second, first * 0]), atol=1e-15)
    assert TASK.criterion()(outputs, masks).item() == pytest.approx(((first + second) / 3).item())
    assert TASK.loss_sum(outputs, masks).item() == pytest.approx((first + second).item())


def run(
    ranks: list[int], strategy: str = "ddp", keys: dict[str, Any] | None = None, **more: Any
) -> SimulatedRun:
    settings = {"epochs": 1, "global_batch_size": 4, "optimizer": SGD(lr=0.1), "precision": "fp64", **more}
    asked = config(
        strategy,
        keys=keys,
        ranks=ranks,
        model=SmallFCN(channels=[3, 4]),
        dataset=Shapes(samples=4, validation_samples=2, test_samples=7, height=16, width=20),
        target_metric="miou",
        **settings,
    )
    return simulate(asked, asked.dataset.load())


@pytest.mark.parametrize("ranks", [[1, 1], [2, 1], [2, 2]])
def test_seven_images_give_the_same_numbers_on_one_to_four_ranks(ranks: list[int]):
    done = run(ranks, optimizer=SGD(lr=1e-300))
    (row,) = evaluations(done)
    context = done.contexts[0]
    alone = score(
        context.replica.model,
        context.data.test,
        torch.arange(7),
        context.backend.device,
        context.dtype,
        task=context.task,
    ).numbers()
    assert (row["miou"], row["pixel_accuracy"], row["count"]) == (alone["miou"], alone["pixel_accuracy"], 7)
    assert row["loss"] == pytest.approx(alone["loss"], rel=1e-12)
    assert "accuracy" not in row
    assert "correct" not in row


def test_ranks_with_one_and_three_images_take_the_step_of_one_process_with_four():
    uneven, alone = run([1, 1], "heterogeneous", {"balancing": "manual", "shares": [1, 3]}), run([1])
    assert [context.progress.samples_of_rank for context in uneven.contexts] == [(1, 3)] * 2
    whole, half = alone.contexts[0].replica.flat(), uneven.contexts[0].replica.flat()
    assert torch.allclose(half, whole, rtol=0, atol=1e-12)
    losses = [evaluations(done)[-1]["train_loss"] for done in (uneven, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_large_images_are_judged_a_few_at_a_time():
    assert [TASK.evaluation_batch(side, side) for side in (32, 64, 128, 1024, 4096)] == [256, 256, 64, 1, 1]
