"""A head is certified only where its L is proved: the premises of the theorem, each with a model that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stepsize_opt.problems import linear_smoothness
from stepsize_opt.torch import compress, estimate_smoothness, head_smoothness
from stepsize_opt.torch.head import Batches, find_head
from stepsize_opt.torch.workers import Workers

torch.manual_seed(0)
INPUTS, LABELS = torch.randn(90, 6), torch.randint(0, 3, (90,))
LOSS = nn.CrossEntropyLoss()


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def certified(model: nn.Module, loss: Any = LOSS, data: Any = (INPUTS, LABELS)) -> bool:
    """Whether ``compress`` certifies a model; it leaves the model and the generators of PyTorch as they were."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes, noise = [m.training for m in model.modules()], torch.get_rng_state()
    try:
        optimizer = compress(model, loss, data, floats_per_step=4, verbose=False)
    except ValueError:
        return False
    finally:
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        assert modes == [m.training for m in model.modules()]
    assert torch.equal(noise, torch.get_rng_state())
    return bool(optimizer.plan.certified)


class Blocks(nn.Module):
    """A frozen layer that is left out at random, seldom, for the whole batch (stochastic depth)."""

    def forward(self, x: Tensor) -> Tensor:
        return x if not self.training or torch.rand(()) < 0.999 else torch.zeros_like(x)


class Tied(nn.Module):
    """The inputs of the head depend on its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x @ self.head.weight.T) @ self.head.weight)


class Scaled(nn.Module):
    """What follows the head changes its outputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).mul_(30.0)


def scaled_by_a_hook() -> nn.Module:
    """A forward hook multiplies the outputs; the weights are zero, so that nothing shows at the start."""
    head = nn.Linear(6, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    head.register_forward_hook(lambda module, inputs, outputs: 30.0 * outputs)
    return head


class Always(nn.Module):
    """Dropout in every mode."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=True)


SQUARE = nn.Linear(6, 6)
# Models of which the theorem says nothing, in training mode.
BROKEN: dict[str, Callable[[], nn.Module]] = {
    "batch norm in training": lambda: nn.Sequential(frozen(nn.BatchNorm1d(6)), nn.Linear(6, 3)),
    "batch norm without statistics": lambda: nn.Sequential(
        frozen(nn.BatchNorm1d(6, track_running_stats=False)), nn.Linear(6, 3)
    ).eval(),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)),
    "stochastic depth": lambda: nn.Sequential(Blocks(), nn.Linear(6, 3)),
    "dropout in evaluation": lambda: nn.Sequential(Always(), nn.Linear(6, 3)).eval(),
    "tied weights": Tied,
    "in place": Scaled,
    "relu in place": lambda: nn.Sequential(nn.Linear(6, 3), nn.Hardtanh(-1e9, 1e9, inplace=True)),
    "softmax after": lambda: nn.Sequential(nn.Linear(6, 3), nn.Softmax(1)),
    "a hook": scaled_by_a_hook,
    "weight norm": lambda: nn.utils.weight_norm(nn.Linear(6, 3)),
    "twice": lambda: nn.Sequential(SQUARE, nn.Tanh(), SQUARE),
    "two layers": lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_model_without_the_premises_is_not_certified(name: str) -> None:
    assert not certified(BROKEN[name]())


GOOD: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 3),
    "no bias": lambda: nn.Linear(6, 3, bias=False),
    "frozen trunk": lambda: nn.Sequential(frozen(nn.Linear(6, 6)), frozen(nn.LayerNorm(6)), nn.Linear(6, 3)),
    "batch norm in evaluation": lambda: nn.Sequential(frozen(nn.BatchNorm1d(6)), nn.Linear(6, 3)).eval(),
    "dropout in evaluation": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).eval(),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_head_is_certified(name: str) -> None:
    assert certified(GOOD[name]())


def test_dropout_is_certified_in_evaluation_alone() -> None:
    """The proof is about the modes at the call: a step in others is refused, also for a frozen part that changed."""
    model = nn.Sequential(frozen(nn.BatchNorm1d(6)), nn.Dropout(0.5), nn.Linear(6, 3)).eval()
    optimizer = compress(model, LOSS, (INPUTS, LABELS), floats_per_step=4, verbose=False)

    def step() -> None:
        optimizer.step(lambda: LOSS(model(INPUTS), LABELS))

    step()
    start = model[2].weight.detach().clone()
    model.train()
    with pytest.raises(RuntimeError):
        step()
    model.eval()
    model[0].load_state_dict(model[0].state_dict())  # the same numbers
    step()
    moved = model[2].weight.detach().clone()
    assert not torch.equal(moved, start)
    model[0].running_var.mul_(0.01)  # type: ignore[union-attr, operator]
    with pytest.raises(RuntimeError):
        step()
    assert torch.equal(model[2].weight, moved)
    # Modes may change where they change nothing.
    model = nn.Sequential(frozen(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3))
    optimizer = compress(model, LOSS, (INPUTS, LABELS), floats_per_step=4, verbose=False)
    for mode in (False, True):
        model.train(mode)
        step()


def test_the_matrix_of_a_head_is_that_of_head_smoothness() -> None:
    trunk = frozen(nn.Linear(6, 4))
    model = nn.Sequential(trunk, nn.Tanh(), nn.Linear(4, 3))
    features = torch.tanh(trunk(INPUTS))
    head = find_head(model, LOSS, Batches((INPUTS, LABELS), INPUTS), Workers())
    assert head.name == "2"
    found = linear_smoothness(head.K, head.gram, bias=True)
    np.testing.assert_allclose(found, head_smoothness(features, LOSS, 3, bias=True), rtol=1e-6, atol=1e-9)


def test_rows_that_the_mean_leaves_out_do_not_count() -> None:
    """With them L would be too small: the curvature is at most L, and far above the L of all rows."""
    few = torch.where(torch.arange(90) < 9, LABELS, LOSS.ignore_index)
    inputs = torch.cat([5.0 * INPUTS[:9], INPUTS[9:]])
    model = nn.Linear(6, 3).double()
    head = find_head(model, LOSS, Batches((inputs.double(), few), inputs.double()), Workers())
    found = linear_smoothness(head.K, head.gram, bias=True)
    np.testing.assert_allclose(found, head_smoothness(inputs[:9], LOSS, 3, bias=True), rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError):
        compress(model, LOSS, (inputs.double(), torch.full_like(few, LOSS.ignore_index)), floats_per_step=4)


def test_a_pair_of_tensors_is_read_in_chunks() -> None:
    """4096 sequences at once took 4.6 GB."""
    model, seen = nn.Linear(6, 3), []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    inputs, labels = torch.randn(1000, 6), torch.randint(0, 3, (1000,))
    assert certified(model, LOSS, (inputs, labels))
    estimate_smoothness(model, LOSS, (inputs, labels))
    assert max(seen) == 256


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (LOSS, torch.softmax(INPUTS[:, :3], 1)),
        (nn.CrossEntropyLoss(label_smoothing=0.1), LABELS),
        (nn.MSELoss(), INPUTS[:, :3]),
        (nn.BCEWithLogitsLoss(), torch.rand(90, 3)),
    ],
)
def test_a_loss_with_a_proved_bound_is_certified(loss: nn.Module, targets: Tensor) -> None:
    assert certified(nn.Linear(6, 3), loss, (INPUTS, targets))


class _Focal(nn.CrossEntropyLoss):
    """A loss of its own."""


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (LOSS, 3.0 * torch.softmax(INPUTS[:, :3], 1)),  # no distribution: the curvature is three times K
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 50.0, 1.0])), LABELS),
        (nn.CrossEntropyLoss(reduction="sum"), LABELS),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(30.0)), torch.rand(90, 3)),
        (_Focal(), LABELS),
        (lambda out, y: LOSS(out, y) ** 2, LABELS),
        (nn.MSELoss(), torch.randn(1, 90, 3)),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_a_loss_without_a_proved_bound_is_not_certified(loss: Any, targets: Tensor) -> None:
    assert not certified(nn.Linear(6, 3), loss, (INPUTS, targets))


def test_classes_must_be_the_outputs_of_the_layer() -> None:
    """Cross-entropy takes the second axis for the classes: here the five places of a sequence."""
    inputs, labels = torch.randn(20, 5, 6), torch.randint(0, 5, (20, 3))
    assert not certified(nn.Linear(6, 3), LOSS, (inputs, labels))
    targets = torch.randn(20, 5, 3)
    assert certified(nn.Linear(6, 3), nn.MSELoss(), (inputs, targets))
