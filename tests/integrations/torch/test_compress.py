"""``compress``: a head is certified only where its L is proved, and one call makes an optimizer with a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from stepsize_opt.problems import linear_smoothness
from stepsize_opt.torch import FeedbackSGD, compress, estimate_smoothness, head_smoothness
from stepsize_opt.torch.head import find_head
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


class Centred(nn.Module):
    """The mean of the batch is subtracted, so that of one row nothing is left."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


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


def test_rows_that_depend_on_the_batch_are_seen_in_batches_of_one_row() -> None:
    """They were certified with FᵀF = 0, while the closure takes all rows at once."""
    single = [(INPUTS[i : i + 1], LABELS[i : i + 1]) for i in range(90)]
    assert not certified(nn.Sequential(Centred(), nn.Linear(6, 3)), LOSS, single)
    assert certified(nn.Sequential(nn.Tanh(), nn.Linear(6, 3)), LOSS, single)


@pytest.mark.parametrize("name", GOOD)
def test_a_head_is_certified(name: str) -> None:
    assert certified(GOOD[name]())


class HalvedInTraining(nn.Module):
    """Without random numbers, and without buffers that a step would change."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x if self.training else x


@pytest.mark.parametrize("part", [nn.Dropout(0.5), HalvedInTraining()], ids=["random", "not random"])
def test_a_step_in_another_mode_is_refused(part: nn.Module) -> None:
    model = nn.Sequential(part, nn.Linear(6, 3)).eval()
    optimizer = compress(model, LOSS, (INPUTS, LABELS), floats_per_step=4, verbose=False)
    model.train()
    with pytest.raises(RuntimeError, match="mode"):
        optimizer.step(lambda: LOSS(model(INPUTS), LABELS))


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


def test_the_matrix_of_a_head_is_that_of_the_rows_that_the_mean_counts() -> None:
    """With the others L would be too small: the curvature is at most L, and far above the L of all rows."""
    few = torch.where(torch.arange(90) < 9, LABELS, LOSS.ignore_index)
    inputs = torch.cat([5.0 * INPUTS[:9], INPUTS[9:]]).double()
    trunk = frozen(nn.Linear(6, 4).double())
    model = nn.Sequential(trunk, nn.Tanh(), nn.Linear(4, 3).double())
    head = find_head(model, LOSS, (inputs, few), Workers())
    found, rows = linear_smoothness(head.K, head.gram, bias=True), torch.tanh(trunk(inputs))[:9]
    np.testing.assert_allclose(found, head_smoothness(rows, LOSS, 3, bias=True), rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError):
        compress(model, LOSS, (inputs, torch.full_like(few, LOSS.ignore_index)), floats_per_step=4)


def test_a_pair_of_tensors_is_read_in_chunks() -> None:
    """4096 sequences at once took 4.6 GB."""
    model, seen = nn.Linear(6, 3), []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    inputs, labels = torch.randn(1000, 6), torch.randint(0, 3, (1000,))
    assert certified(model, LOSS, (inputs, labels))
    estimate_smoothness(model, LOSS, (inputs, labels))
    assert max(seen) == 256


class Focal(nn.CrossEntropyLoss):
    """A loss of its own."""


SHARES = torch.softmax(INPUTS[:, :3], 1)
# Losses with their targets, and whether the bound on their curvature is proved.
BOUNDS: list[tuple[Any, Tensor, bool]] = [
    (LOSS, SHARES, True),
    (nn.CrossEntropyLoss(label_smoothing=0.1), LABELS, True),
    (nn.MSELoss(), INPUTS[:, :3], True),
    (nn.BCEWithLogitsLoss(), torch.rand(90, 3), True),
    (LOSS, 3.0 * SHARES, False),  # no distribution: the curvature is three times K
    (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 50.0, 1.0])), LABELS, False),
    (nn.CrossEntropyLoss(reduction="sum"), LABELS, False),
    (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(30.0)), torch.rand(90, 3), False),
    (Focal(), LABELS, False),
    (nn.PoissonNLLLoss(), INPUTS[:, :3], False),
    (nn.functional.mse_loss, INPUTS[:, :3], False),
    (lambda out, y: LOSS(out, y) ** 2, LABELS, False),
    (nn.MSELoss(), torch.randn(1, 90, 3), False),
]


@pytest.mark.parametrize(("loss", "targets", "proved"), BOUNDS)
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_a_loss_is_certified_where_its_bound_is_proved(loss: Any, targets: Tensor, proved: bool) -> None:
    assert certified(nn.Linear(6, 3), loss, (INPUTS, targets)) == proved
    # Cross-entropy takes the second axis for the classes: here the five places of a sequence.
    sequences = torch.randn(20, 5, 6)
    assert not certified(nn.Linear(6, 3), LOSS, (sequences, torch.randint(0, 5, (20, 3))))
    assert certified(nn.Linear(6, 3), nn.MSELoss(), (sequences, torch.randn(20, 5, 3)))


# ----------------------------------------------------------------
# plans, networks, refusals


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def convolution() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2))


def power(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (out - targets).abs().pow(1.5).mean()


IMAGES, TARGETS = (torch.randn(64, 1, 4, 4), torch.randint(0, 2, (64,))), INPUTS @ torch.randn(6, 2)


@pytest.mark.parametrize(
    ("model", "loss", "data", "share"),
    [
        (network(), LOSS, (INPUTS, LABELS), 0.7),
        (torch.compile(convolution(), backend="eager"), LOSS, IMAGES, 0.9),
        (nn.Linear(6, 2), nn.MSELoss(), (INPUTS, TARGETS), 1e-2),
        (nn.Linear(6, 2), power, (INPUTS, TARGETS), 1e-2),
    ],
    ids=["network", "convolution", "squares", "power"],
)
def test_models_without_a_proof_take_an_estimate_and_all_fall(model: Any, loss: Any, data: Any, share: float) -> None:
    proved = isinstance(loss, nn.MSELoss)
    batches = DataLoader(TensorDataset(*data), batch_size=16) if data is IMAGES else data
    L = None if proved else estimate_smoothness(model, loss, batches)
    optimizer = compress(model, loss, batches, L=L, floats_per_step=6, verbose=False)
    assert isinstance(optimizer, FeedbackSGD) and optimizer.plan.certified == proved
    assert proved or "certified=False" in str(optimizer.plan)

    def closure() -> torch.Tensor:
        return loss(model(data[0]), data[1])

    first = closure().item()
    for _ in range(100):
        optimizer.step(closure)
    assert closure().item() < share * first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_head_is_proved_and_falls(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    head = nn.Linear(6, 3, dtype=dtype)
    inputs = INPUTS.to(dtype)
    optimizer = compress(head, LOSS, (inputs, LABELS), floats_per_step=6, weight_decay=0.01)
    shown = capsys.readouterr().out
    assert "weight + bias" in shown and "⊗ FᵀF/n + λI, proved" in shown and "certified for full gradients" in shown
    assert optimizer.plan.certified and optimizer.plan.d == 21 and optimizer.plan.k == 6
    assert optimizer.plan.setup_bytes == 28 * (8 if dtype == torch.float64 else 4)  # a triangle of the 7×7 matrix FᵀF
    first = LOSS(head(inputs), LABELS).item()
    for _ in range(80):
        optimizer.step(lambda: LOSS(head(inputs), LABELS))
    assert LOSS(head(inputs), LABELS).item() < first
    assert (
        optimizer.bytes_sent == 80 * (optimizer.plan.bytes_up - 8) + 16 * optimizer.checks
    )  # two values of f in a check


def test_noise_and_buffers_are_the_same_at_both_ends_of_a_check() -> None:
    """The loss at the trial point has the dropout of the last checked point, and leaves batch normalisation alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    data = (INPUTS, LABELS)
    optimizer = compress(model, LOSS, data, L=estimate_smoothness(model, LOSS, data), floats_per_step=6, verbose=False)
    assert model.training
    counts, seen, start = [], [], 0.0

    def closure() -> torch.Tensor:
        seen.append(model[1](torch.ones(1000)).sum().item())
        return LOSS(model(INPUTS), LABELS)

    for step in range(1, 12):
        checked = optimizer.stepsize.unchecked == 0.0
        seen.clear()
        optimizer.step(closure)
        start = seen[0] if checked else start
        counts.append(len(seen))
        assert len(seen) == 1 or seen[1] == start
        assert int(model[0].num_batches_tracked) == step  # type: ignore[arg-type]
    assert set(counts) == {1, 2} and sum(counts) == 11 + optimizer.checks


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"floats_per_step": 0}, ValueError, "floats_per_step"),
        ({"data": 3}, TypeError, "data must be"),
        ({"data": [(INPUTS, LABELS, LABELS)]}, TypeError, "data must yield"),
        ({"data": []}, ValueError, "data must have"),
        ({"L": torch.eye(21)}, TypeError, "L must be"),
        ({"model": network()}, ValueError, "no L is proved"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay"),
        ({"model": nn.Linear(6, 3).requires_grad_(False)}, ValueError, "no trainable parameters"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"model": nn.Linear(6, 3), "loss": LOSS, "data": (INPUTS, LABELS), "floats_per_step": 4} | options
    with pytest.raises(error, match=message):
        compress(given.pop("model"), given.pop("loss"), given.pop("data"), **given)
