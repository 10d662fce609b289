"""L of models: proved for heads, labelled where it is estimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from stepsize_opt import Feedback, RandK, optimal_method, optimal_stepsize
from stepsize_opt.torch import estimate_smoothness, head_smoothness

RNG = np.random.default_rng(0)
FEATURES = torch.tensor(RNG.standard_normal((30, 4)) * [1.0, 3.0, 0.2, 1.0])
LOSSES = {
    "softmax": nn.CrossEntropyLoss(),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "logistic": nn.BCEWithLogitsLoss(),
    "squared": nn.MSELoss(),
    "huber": nn.HuberLoss(delta=0.5),
    "smooth l1": nn.SmoothL1Loss(beta=0.3),
}


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("name", LOSSES)
def test_heads_have_curvature_at_most_L(name: str, bias: bool) -> None:
    """Hessians at random points, and the largest attained curvature is not far below."""
    loss, ridge = LOSSES[name], 0.01
    classes, values = torch.tensor(RNG.integers(0, 3, 30)), torch.tensor(RNG.random((30, 3)))
    targets = classes if isinstance(loss, nn.CrossEntropyLoss) else values
    L = head_smoothness(FEATURES, loss, 3, bias=bias, ridge=ridge)
    assert L.shape == (12 + 3 * bias,) * 2

    def f(x: torch.Tensor) -> torch.Tensor:
        z = FEATURES @ x[:12].view(3, 4).T + (x[12:] if bias else 0.0)
        return loss(z, targets) + 0.5 * ridge * x @ x

    attained = 0.0
    for scale in (0.0, 1e-3, 1.0, 10.0):
        x = torch.tensor(scale * RNG.standard_normal(len(L)))
        H = torch.func.hessian(f)(x).numpy()
        w = np.linalg.eigvalsh(np.linalg.solve(np.linalg.cholesky(L), np.linalg.solve(np.linalg.cholesky(L), H).T))
        attained = max(attained, w[-1])
    # Huber and smooth-L1 losses are linear far out, softmax with three classes reaches two thirds.
    assert 0.3 < attained <= 1.0 + 1e-12


def test_a_tensor_with_a_gradient_is_refused_as_L() -> None:
    L = torch.eye(3, dtype=torch.float64)
    assert optimal_stepsize(L, RandK(3, 1)).status == "optimal"
    for other in (L.to_sparse(), L.bfloat16(), L.to("meta")):
        with pytest.raises(TypeError, match=r"L does not turn into an array .*; pass it as an array of float64"):
            optimal_stepsize(other, RandK(3, 1))
    with pytest.raises(TypeError, match=r"L does not turn into an array .*detach"):
        optimal_stepsize(L.requires_grad_(), RandK(3, 1))


class Focal(nn.CrossEntropyLoss):
    """A loss of its own."""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        *(
            ((FEATURES, loss, 3), TypeError, "no proved bound")
            for loss in (nn.PoissonNLLLoss(), Focal(), nn.MSELoss, nn.functional.mse_loss)
        ),
        ((FEATURES, nn.CrossEntropyLoss(weight=torch.ones(3)), 3), ValueError, "no weights"),
        ((FEATURES, nn.MSELoss(reduction="sum"), 1), ValueError, "reduction"),
        ((torch.full((2, 2), torch.nan), nn.MSELoss(), 1), ValueError, "finite"),
        ((1e200 * torch.ones(2, 2, dtype=torch.float64), nn.MSELoss(), 1), ValueError, "beyond float64"),
        ((np.eye(2), nn.MSELoss(), 1), TypeError, "features"),
    ],
)
def test_a_loss_without_a_proof_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        head_smoothness(*arguments)
    for ridge in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="ridge"):
            head_smoothness(FEATURES, nn.MSELoss(), 1, ridge=ridge)


def test_an_estimate_has_the_largest_curvature_and_is_labelled() -> None:
    """Compared with the Hessian at the present parameters, in evaluation mode."""
    torch.manual_seed(0)
    layers = (nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 2))
    net, labels, loss = nn.Sequential(*layers).double().train(), torch.arange(30) % 2, LOSSES["softmax"]
    estimate = estimate_smoothness(net, loss, (FEATURES, labels), rank=12, weight_decay=0.1)
    assert all(module.training for module in net.modules())
    named = {name: p.detach() for name, p in net.named_parameters()}

    def f(x: torch.Tensor) -> torch.Tensor:
        parts = x.split([p.numel() for p in named.values()])
        values = {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}
        return loss(functional_call(net.eval(), values, (FEATURES,)), labels)

    H = torch.func.hessian(f)(torch.cat([p.reshape(-1) for p in named.values()])).numpy()
    sizes = np.sort(np.abs(np.linalg.eigvalsh(H)))[::-1]
    found = np.linalg.eigvalsh(estimate.curvature.todense())[::-1]
    np.testing.assert_allclose(found[:5], sizes[:5] + 0.1, rtol=1e-6)
    assert "certified=False" in repr(estimate)
    result = optimal_stepsize(estimate, RandK(29, 5), structure="diagonal")
    assert not result.certified and "rank 12" in result.summary()["estimated"]
    assert not Feedback(estimate, 2).certified


def test_an_estimate_for_many_parameters_forms_nothing_dense() -> None:
    estimate = estimate_smoothness(
        nn.Linear(50_000, 2), nn.CrossEntropyLoss(), (torch.randn(8, 50_000), torch.arange(8) % 2), rank=3
    )
    assert estimate.curvature.rank == 3 and estimate.curvature.d == 100_002
    assert optimal_method(estimate.matrix, 100).d == 100_002
    flat = nn.Linear(4, 2, bias=False).double()
    labels = torch.arange(30) % 2
    for data, rank in (((0.0 * FEATURES, labels), 2), ((FEATURES, labels), 0), ([], 2)):
        with pytest.raises(ValueError):
            estimate_smoothness(flat, nn.CrossEntropyLoss(), data, rank=rank)
