"""``compress``: one call from a model to an optimizer, with a plan that tells what is sent and what is proved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepsize_opt.torch import FeedbackSGD, compress, estimate_smoothness

torch.manual_seed(0)
INPUTS, LABELS = torch.randn(90, 6), torch.randint(0, 3, (90,))
LOSS = nn.CrossEntropyLoss()


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
