"""Models in torch and in NumPy are the same functions; gradients are right; parameters are awkward."""

import numpy as np
import pytest
import torch
from numpy_models import Autoencoder, Part
from numpy_optimizers import ADAMW, DECAYED, LARS, LARS_RECIPE, MOMENTUM, NESTEROV, PLAIN, SGD, Recipe
from torch_models import DTYPES, ModelProblem, autoencoder

TYPES = [("float64", "float64"), ("float32", "float32"), ("float64", "float32"), ("float32", "float64")]


def test_gradients_by_hand_are_slopes():
    numpy_model = Autoencoder("float64", "float64")
    x, t = numpy_model.draw(np.random.default_rng(3), 1, 4)
    theta = numpy_model.start + 0.1
    _, gradient, _ = numpy_model.descend(theta, numpy_model.buffers, x, t)
    slopes = np.empty_like(gradient)
    for place in range(len(theta)):
        step = np.zeros_like(theta)
        step[place] = 1e-6
        above, below = (
            numpy_model.descend(theta + sign * step, numpy_model.buffers, x, t)[0] for sign in (1, -1)
        )
        slopes[place] = (above - below) / 2e-6
    assert gradient == pytest.approx(slopes, abs=1e-8)
    assert np.abs(gradient).min() > 1e-4, "every element has a gradient worth the name"


@pytest.mark.parametrize(("dtype", "odd"), TYPES)
def test_torch_and_numpy_agree_on_loss_gradient_and_buffers(dtype: str, odd: str):
    problem = autoencoder(2, dtype=dtype, odd=odd)
    model, numpy_model = problem.model().train(), problem.numpy_model
    inputs, targets = problem.data(1, 3)
    loss = problem.criterion()(model(inputs), targets)
    loss.backward()
    wanted, gradient, buffers = numpy_model.descend(
        numpy_model.start, numpy_model.buffers, *problem.samples.piece(1, 3)
    )
    close = {"float64": 1e-14, "float32": 1e-6}
    parts = {part.name: part for part in numpy_model.parts}
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert named.keys() == parts.keys()
    assert loss.item() == pytest.approx(wanted, abs=max(close[dtype], close[odd]))
    for name, view in numpy_model.views(gradient).items():
        grad = named[name].grad
        assert grad is not None
        assert grad.dtype == DTYPES[parts[name].dtype]
        assert grad.double().numpy() == pytest.approx(view, abs=close[parts[name].dtype]), name
    assert dict(model.named_buffers())["mean"].double().numpy() == pytest.approx(buffers, abs=close[dtype])


@pytest.mark.parametrize("recipe", [PLAIN, MOMENTUM, DECAYED, NESTEROV, ADAMW, LARS_RECIPE], ids=str)
def test_optimizers_in_torch_and_numpy_step_alike(recipe: Recipe):
    problem: ModelProblem = autoencoder(1, recipe=recipe)
    model, numpy_model = problem.model(), problem.numpy_model
    named = dict(model.named_parameters())
    optimizer = problem.optimizer([p for p in model.parameters() if p.requires_grad])
    theta, ours = numpy_model.start.copy(), recipe.build(numpy_model.parts)
    generator = np.random.default_rng(1)
    for step in range(20):
        gradient = generator.normal(size=len(theta))
        for name, view in numpy_model.views(gradient).items():
            # In the parameter's own strides, as backward leaves it: fused kernels read memory as it lies.
            named[name].grad = torch.empty_like(named[name]).copy_(torch.from_numpy(view.copy()))
        lr = recipe.lr * (1 if step < 10 else 0.5)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        ours.step(theta, gradient, lr)
        for name, view in numpy_model.views(theta).items():
            assert named[name].detach().numpy() == pytest.approx(view, abs=1e-13), (step, name)


@pytest.mark.parametrize(("decay", "step"), [(0.0, (0.0, 0.01)), (0.1, (0.002, 0.028 / 3))])
def test_lars_by_hand(decay: float, step: tuple[float, float]):
    """w = (3, 4), g = (0, 1), η = 0.001, lr = 2: λ = 0.005, with decay 0.1 1/300."""
    recipe = Recipe("lars", lr=2.0, momentum=0.0, weight_decay=decay, trust=0.001)
    w = np.array([3.0, 4.0])
    LARS(recipe, [Part("w", (2, 1))]).step(w, np.array([0.0, 1.0]), 2.0)
    assert np.array([3.0, 4.0]) - w == pytest.approx(step, abs=1e-12)


def test_sgd_by_hand():
    """μ = 0.5, lr 1, g = 1: 1, then 1.5; Nesterov looks ahead: 1.5, then 1.75."""
    for nesterov, wanted in ((False, -2.5), (True, -3.25)):
        w = np.zeros(1)
        sgd = SGD(Recipe(momentum=0.5, nesterov=nesterov), [Part("w", (1,))])
        sgd.step(w, np.ones(1), 1.0)
        sgd.step(w, np.ones(1), 1.0)
        assert w == pytest.approx([wanted], abs=1e-15)
