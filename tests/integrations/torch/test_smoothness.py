"""L of models: proved for heads, labelled where it is estimated; stepsizes in a smaller dtype are proved again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import nn
from torch.func import functional_call

from stepsize_opt import Feedback, Identity, RandK, certify, optimal_method, optimal_stepsize
from stepsize_opt.torch import certified_cast, estimate_smoothness, head_smoothness
from stepsize_validation.data import random_smoothness

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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((FEATURES, nn.MSELoss, 3), TypeError, "no proved bound"),
        ((torch.full((2, 2), torch.nan), nn.MSELoss(), 1), ValueError, "finite"),
        ((1e200 * torch.ones(2, 2, dtype=torch.float64), nn.MSELoss(), 1), ValueError, "beyond float64"),
        ((np.eye(2), nn.MSELoss(), 1), TypeError, "features"),
    ],
)
def test_features_and_ridges_that_prove_nothing_are_refused(
    arguments: Any, error: type[Exception], message: str
) -> None:
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


# ----------------------------------------------------------------
# stepsizes in a smaller dtype


def test_a_cast_stepsize_is_proved_again() -> None:
    """Rounding alone leaves the condition in about half of all cases; what is returned never does."""
    broken = 0
    for seed in range(8):
        L, sketch = random_smoothness(np.random.default_rng(seed), 5, 1e3), RandK(5, 2)
        D = optimal_stepsize(L, sketch).D
        broken += not certify(D.astype(np.float32), L, sketch).feasible
        cast = certified_cast(D, L, sketch)
        assert cast.dtype == torch.float32
        assert certify(cast.numpy().astype(float), L, sketch).feasible
        np.testing.assert_allclose(cast.numpy(), D, rtol=1e-5, atol=1e-6 * D.max())
    assert broken > 0
    with pytest.raises(ValueError, match=r"no multiple of D rounded to torch\.bfloat16"):
        L = random_smoothness(np.random.default_rng(0), 5, 1e8)
        certified_cast(optimal_stepsize(L, RandK(5, 2)).D, L, RandK(5, 2), torch.bfloat16)
    with pytest.raises(ValueError, match="check that D is positive definite"):
        certified_cast(np.diag([1.0, -1.0]), np.eye(2), RandK(2, 1), torch.float64)


def test_a_cast_is_proved_for_its_goal() -> None:
    L, sketch = random_smoothness(np.random.default_rng(1), 6, 1e3), RandK(6, 3)
    result = optimal_stepsize(L, sketch, goal="descent")
    cast = certified_cast(result.D, L, sketch, goal="descent").double().numpy()
    check = certify(cast, L, sketch)
    assert not check.feasible and check.descent.feasible
    assert check.descent_rate == pytest.approx(result.rate, rel=1e-5)
    under_the_condition = certify(certified_cast(result.D, L, sketch).double().numpy(), L, sketch)
    assert under_the_condition.feasible and under_the_condition.descent_rate < 0.9 * result.rate
    with pytest.raises(ValueError, match=r"beyond the range of torch\.float16"):
        certified_cast(1e6 * np.eye(2), 1e-7 * np.eye(2), Identity(2), torch.float16)
    with pytest.raises(TypeError, match="D"):
        certified_cast(aslinearoperator(np.eye(2)), np.eye(2), Identity(2))
