"""L of models: proved for heads, labelled where it is estimated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from stepsize_opt import Feedback, RandK, compare, optimal_method, optimal_stepsize
from stepsize_opt.problems import SoftmaxRegression
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


def test_the_softmax_head_is_the_objective_of_the_runner() -> None:
    labels = RNG.integers(0, 3, 30)
    f = SoftmaxRegression(FEATURES.numpy(), labels, 3, 0.01)
    np.testing.assert_allclose(
        head_smoothness(FEATURES, nn.CrossEntropyLoss(), 3, ridge=0.01), f.smoothness(), rtol=1e-14
    )
    x = torch.tensor(RNG.standard_normal(12), requires_grad=True)
    value = nn.functional.cross_entropy(FEATURES @ x.view(3, 4).T, torch.tensor(labels)) + 0.005 * x @ x
    value.backward()
    point = x.detach().numpy()[None]
    np.testing.assert_allclose(f.value(point)[0], value.item(), rtol=1e-14)
    # An entry is a mean of terms near one that may cancel: its rounding is about 1e-16, however small it is.
    np.testing.assert_allclose(f.gradient(point)[0], x.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_a_tensor_with_a_gradient_is_refused_as_L() -> None:
    L = torch.eye(3, dtype=torch.float64)
    assert optimal_stepsize(L, RandK(3, 1)).status == "optimal"
    for other in (L.to_sparse(), L.bfloat16(), L.to("meta")):
        with pytest.raises(TypeError, match=r"L does not turn into an array .*; pass it as a dense matrix of float64"):
            optimal_stepsize(other, RandK(3, 1))
    with pytest.raises(TypeError, match=r"pass L\.detach\(\)"):
        optimal_stepsize(L.requires_grad_(), RandK(3, 1))


def test_a_loss_without_a_proof_is_refused() -> None:
    with pytest.raises(TypeError, match="no proved bound on the curvature of PoissonNLLLoss"):
        head_smoothness(FEATURES, nn.PoissonNLLLoss(), 1)
    with pytest.raises(ValueError, match="no weights"):
        head_smoothness(FEATURES, nn.CrossEntropyLoss(weight=torch.ones(3)), 3)
    with pytest.raises(ValueError, match="reduction='mean'"):
        head_smoothness(FEATURES, nn.MSELoss(reduction="sum"), 1)
    with pytest.raises(ValueError, match="finite"):
        head_smoothness(torch.full((2, 2), torch.nan), nn.MSELoss(), 1)

    class Focal(nn.CrossEntropyLoss):
        """A loss of its own."""

    for loss in (Focal(), nn.MSELoss, nn.functional.mse_loss):
        with pytest.raises(TypeError, match="no proved bound on the curvature"):
            head_smoothness(FEATURES, loss, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="features must be a tensor of real numbers"):
        head_smoothness(np.eye(2), nn.MSELoss(), 1)  # type: ignore[arg-type]
    for ridge in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="ridge must be"):
            head_smoothness(FEATURES, nn.MSELoss(), 1, ridge=ridge)
    with pytest.raises(ValueError, match="beyond float64"):
        head_smoothness(1e200 * torch.ones(2, 2, dtype=torch.float64), nn.MSELoss(), 1)


def test_points_that_are_one_are_refused() -> None:
    """References to the parameters of a model all move with it, and the held-out check would be empty."""
    net, points = small_network()

    def objective(x):
        return functional_call(net, x, (FEATURES,)).square().mean()

    live = [dict(net.named_parameters()) for _ in range(2)]
    with pytest.raises(ValueError, match=r"held_out\[0\] is in the memory of another point; pass copies"):
        estimate_smoothness(objective, live[:1], live[1:])
    with pytest.raises(ValueError, match="points must be a list of at least one point"):
        estimate_smoothness(objective, points[0], points[1:])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"held_out\[0\] has other names or shapes"):
        estimate_smoothness(objective, points[:1], [{"x": torch.zeros(2)}])
    with pytest.raises(ValueError, match="floor must be"):
        estimate_smoothness(objective, points[:1], points[1:], floor=0.0)
    with pytest.raises(ValueError, match="no Hessian has positive curvature in x"):
        zeros = [{"x": torch.zeros(2)} for _ in range(2)]
        estimate_smoothness(lambda point: -point["x"].square().sum(), zeros[:1], zeros[1:])


def small_network() -> tuple[nn.Module, list[dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    points = [{n: p.detach() + 0.1 * i * torch.randn_like(p) for n, p in net.named_parameters()} for i in range(5)]
    return net, points


@pytest.mark.parametrize("layers", [1, 2])
def test_an_estimate_bounds_the_held_out_hessians(layers: int) -> None:
    net, points = small_network()
    targets = torch.tensor(RNG.integers(0, 2, 30))

    def objective(x):
        return nn.functional.cross_entropy(functional_call(net, x, (FEATURES,)), targets)

    names = list(points[0])
    blocks = None if layers == 1 else [names[:2], names[2:]]
    estimate = estimate_smoothness(objective, points[:2], points[2:], blocks=blocks)
    L = estimate.matrix
    largest = []
    for point in points[2:]:
        flat = torch.cat([point[name].reshape(-1) for name in names])
        sizes = [point[name].numel() for name in names]
        H = torch.func.hessian(
            lambda x, sizes=sizes, point=point: objective(
                {n: part.view_as(point[n]) for n, part in zip(names, x.split(sizes), strict=True)}
            )
        )(flat).numpy()
        largest.append(np.linalg.eigvals(np.linalg.solve(L, H)).real.max())
    assert max(largest) <= 1.0 + 1e-9
    assert estimate.margin == 1.0 or max(largest) == pytest.approx(1.0, rel=1e-9)
    if layers == 2:
        assert not np.any(L[:15, 15:])


def test_estimates_are_labelled_down_to_the_table() -> None:
    net, points = small_network()
    targets = torch.tensor(RNG.integers(0, 2, 30))
    estimate = estimate_smoothness(
        lambda x: nn.functional.cross_entropy(functional_call(net, x, (FEATURES,)), targets), points[:1], points[1:2]
    )
    assert "certified=False" in repr(estimate)
    result = optimal_stepsize(estimate, RandK(23, 5), structure="diagonal")
    assert not result.certified
    assert result.summary()["certified"] is False
    assert "L is estimated, certified=False (1 Hessians, 1 block" in repr(result)
    table = compare(estimate, RandK(23, 5))
    assert "certified=False" in repr(table)
    assert not any(record["certified"] for record in table.to_records())


def estimated(net: nn.Module, points: list[dict[str, torch.Tensor]], **options):
    targets = torch.arange(30) % 2

    def objective(x):
        return nn.functional.cross_entropy(functional_call(net, x, (FEATURES,)), targets)

    return estimate_smoothness(objective, points[:2], points[2:], **options)


def test_the_floor_is_the_one_with_the_smallest_trace() -> None:
    net, points = small_network()
    chosen = estimated(net, points)
    floors = [estimated(net, points, floor=floor) for floor in (1e-4, 1e-3, 1e-2, 1e-1)]
    traces = [np.trace(one.matrix) for one in floors]
    assert np.trace(chosen.matrix) <= min(traces) * (1.0 + 1e-9) < max(traces)
    margins = [one.margin for one in floors]
    assert margins == sorted(margins, reverse=True)  # the flattest directions need the largest margin
    assert "floor" in chosen.source


def test_a_low_rank_is_an_estimate_for_many_parameters() -> None:
    """It bounds the held-out Hessians; with 10⁵ parameters nothing d×d is formed."""
    net, points = small_network()
    full = estimated(net, points, rank=10)
    H = sum(hessian(net, point) for point in points[:2]) / 2.0
    w = np.abs(np.linalg.eigvalsh(H))
    assert np.linalg.eigvalsh(full.curvature.todense())[-1] == pytest.approx(w.max(), rel=1e-6)
    largest = max(
        np.linalg.eigvals(np.linalg.solve(full.matrix.todense(), hessian(net, p))).real.max() for p in points[2:]
    )
    assert full.margin > 1.0 and largest == pytest.approx(1.0, rel=1e-4)
    result = optimal_stepsize(full, RandK(23, 5), structure="diagonal")
    assert not result.certified and "rank 10" in result.summary()["estimated"]
    assert not Feedback(full, 2).certified
    with pytest.raises(ValueError, match="rank= is for all parameters together"):
        estimated(net, points, rank=2, floor=0.1)

    wide = nn.Linear(50_000, 2)
    inputs, targets = torch.randn(8, 50_000), torch.tensor([0, 1] * 4)
    at = [{n: p.detach() + 0.001 * i for n, p in wide.named_parameters()} for i in range(2)]
    estimate = estimate_smoothness(
        lambda x: nn.functional.cross_entropy(functional_call(wide, x, (inputs,)), targets), at[:1], at[1:], rank=3
    )
    assert estimate.curvature.rank == 3 and estimate.curvature.d == 100_002
    assert optimal_method(estimate.matrix, 100).d == 100_002


def hessian(net: nn.Module, point: dict[str, torch.Tensor]) -> np.ndarray:
    names, targets = list(point), torch.arange(30) % 2
    sizes = [point[name].numel() for name in names]

    def f(x: torch.Tensor) -> torch.Tensor:
        parts = {n: part.view_as(point[n]) for n, part in zip(names, x.split(sizes), strict=True)}
        return nn.functional.cross_entropy(functional_call(net, parts, (FEATURES,)), targets)

    return torch.func.hessian(f)(torch.cat([point[name].reshape(-1) for name in names])).numpy()
