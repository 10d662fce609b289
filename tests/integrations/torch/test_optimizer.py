"""The optimizers behave like those of PyTorch: groups, schedulers, closures, accumulation, weight decay, errors."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stepsize_opt import (
    CompressedStep,
    Feedback,
    Gaussian,
    Identity,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.sketches.draws import generators
from stepsize_opt.torch import CompressedSGD, FeedbackSGD
from stepsize_validation import run, run_feedback
from stepsize_validation.data import random_quadratic

F = random_quadratic(np.geomspace(0.05, 1.0, 12), np.random.default_rng(2))
H, END = torch.tensor(F.H), torch.tensor(F.minimiser)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def distance(x: torch.Tensor) -> torch.Tensor:
    away = x - END.to(x)
    return 0.5 * away @ H.to(x) @ away


def parameter(dtype: torch.dtype = torch.float64, device: str = "cpu") -> nn.Parameter:
    return nn.Parameter(torch.zeros(12, dtype=dtype, device=device))


LOW_RANK = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((12, 3)), 1.0)
COMPRESSORS: dict[str, Any] = {
    "det-CGD2 of a low rank": optimal_stepsize(LOW_RANK, RandK(12, 3), algorithm="det-CGD2"),
    "diagonal D of a low rank": optimal_stepsize(LOW_RANK, RandK(12, 3), structure="diagonal"),
    "subspace": optimal_method(F.H, 3),
    "subspace of a low rank": optimal_method(LOW_RANK, 3),
    "no compression": CompressedStep.of(np.linalg.inv(F.H), Identity(12)),
    "layers, one of them Gaussian": CompressedStep.of(0.1 * np.eye(12), LayerWise([Gaussian(7, 2), RandK(5, 1)])),
}
# Both optimizers, made for one parameter.
BOTH: list[Any] = [
    lambda x: CompressedSGD([x], COMPRESSORS["subspace"]),
    lambda x: FeedbackSGD([x], Feedback(F.H, 3)),
]


def test_groups_may_have_different_types() -> None:
    """Each sends floats of its own type, and the draws are the same."""
    found = []
    for dtype in (torch.float64, torch.float32):
        parameters = parameter(dtype), parameter()
        groups = [
            {"params": [x], "compressor": optimal_method(F.H, k)} for x, k in zip(parameters, (3, 4), strict=True)
        ]
        optimizer = CompressedSGD(groups, seed=5)
        for _ in range(6):
            optimizer.step(lambda xs=parameters: distance(xs[0]) + distance(xs[1]))
        found.append((optimizer.bytes_sent, *[x.detach().double() for x in parameters]))
    assert [sent for sent, *_ in found] == [6 * 8 * (3 + 4), 6 * (4 * 3 + 8 * 4)]
    (_, *alike), (_, *mixed) = found
    torch.testing.assert_close(mixed[0], alike[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(mixed[1], alike[1]) and alike[1].abs().max() > 0.1


@pytest.mark.parametrize("places", ["own", "shared"])
@pytest.mark.parametrize("d", [2**15, 2**15 + 1])
def test_the_last_of_many_indices_is_sent(d: int, places: str) -> None:
    """Indices travel in two bytes as long as these hold all of them."""
    x = nn.Parameter(torch.zeros(d, dtype=torch.float64))
    optimizer = FeedbackSGD([x], Feedback(LowRankPlusDiagonal(np.zeros((d, 1)), 1.0), 1, places=places))
    optimizer.step(lambda: 0.5 * x.square().sum() - x[-1])
    assert x.detach().nonzero().flatten().tolist() == [d - 1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_step_is_that_of_the_compressor(name: str, device: str) -> None:
    given = COMPRESSORS[name]
    step = given.compressor() if hasattr(given, "compressor") else given
    x, rng = parameter(device=device), generators(5, 1)[0]
    optimizer, expected = CompressedSGD([x], given, seed=5), np.zeros(12)
    for _ in range(6):
        draw = step.draw(rng)
        expected = expected - step.decode(step.encode(F.gradient(expected[None])[0], draw), draw)
        optimizer.step(lambda: distance(x))
    np.testing.assert_allclose(x.detach().cpu().numpy(), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("L", [F.H, LOW_RANK, None], ids=["matrix", "low rank", "coordinates"])
def test_feedback_in_every_basis_is_that_of_the_runner(L: Any) -> None:
    feedback, x = Feedback(L, 2, places="shared"), parameter()
    optimizer = FeedbackSGD([x], feedback)
    for _ in range(25):
        optimizer.step(lambda: distance(x))
    record = run_feedback(F, feedback, rounds=25)
    optimizer.eval()
    np.testing.assert_allclose(x.detach().numpy(), record.final_point, rtol=1e-9, atol=1e-11)
    assert optimizer.stepsize.decrease == pytest.approx(record.decrease[-1], rel=1e-9)
    assert optimizer.bound == pytest.approx(record.bounds[-1], rel=1e-9)
    assert optimizer.checks == record.checked.sum() and optimizer.rounds == 25


def test_places_are_the_largest_and_of_equal_ones_the_oldest() -> None:
    x = nn.Parameter(torch.zeros(5000))
    optimizer = FeedbackSGD([x], Feedback(None, 40))
    sizes = torch.rand(5000)
    np.testing.assert_array_equal(optimizer._largest(sizes), np.sort(np.argsort(-sizes.numpy())[:40]))
    equal = torch.ones(5000)
    optimizer._last[:100] = 1
    np.testing.assert_array_equal(optimizer._largest(equal), np.arange(100, 140))


def test_the_loss_at_checked_points_never_rises_and_a_closure_may_differentiate() -> None:
    """Also in float32, and both forms of a closure make the same steps."""
    points, losses = [], []
    for backward in (False, True):
        x = parameter(torch.float32)
        optimizer = FeedbackSGD([x], Feedback(F.H, 3))

        def closure(backward: bool = backward, x: nn.Parameter = x) -> torch.Tensor:
            loss = distance(x)
            if backward:
                loss.backward()
            return loss

        losses = []
        for _ in range(40):
            checked = optimizer.stepsize.unchecked == 0.0
            loss = optimizer.step(closure).item()
            losses += [loss] if checked else []
        assert all(b <= a for a, b in pairwise(losses))
        points.append(x.detach().clone())
    assert losses[-1] < 1e-5 * losses[0]
    assert torch.equal(*points)


def test_groups_schedulers_and_accumulated_gradients() -> None:
    first, second = parameter(), parameter()
    step = CompressedStep.of(np.linalg.inv(F.H), Identity(12))
    groups = [{"params": [first]}, {"params": [second], "lr": 0.5, "compressor": optimal_method(F.H, 3)}]
    optimizer = CompressedSGD(groups, step)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for part in (0.25, 0.75):
        (part * (distance(first) + distance(second))).backward()
    optimizer.step()
    scheduler.step()
    np.testing.assert_allclose(first.detach(), F.minimiser, rtol=1e-9)
    assert optimizer.bytes_sent == 8 * (12 + 3)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    with torch.no_grad():
        first.zero_()
    optimizer.zero_grad()
    (distance(first) + distance(second)).backward()
    optimizer.step()
    np.testing.assert_allclose(first.detach(), 0.5 * F.minimiser, rtol=1e-9)


def test_feedback_has_no_lr() -> None:
    """Below 0.2 it froze training: the rule requires a decrease of 0.2 of the step."""
    x = parameter()
    optimizer, with_lr = FeedbackSGD([x], Feedback(F.H, 3)), {"params": [parameter()], "lr": 0.5}
    with pytest.raises(KeyError, match="lr"):
        torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for call in (
        lambda: optimizer.add_param_group(with_lr),
        lambda: optimizer.add_param_group({"params": [parameter()]}),
        lambda: FeedbackSGD([with_lr], Feedback(F.H, 3)),
        lambda: (optimizer.param_groups[0].update(lr=0.1), optimizer.step(lambda: distance(x))),
    ):
        with pytest.raises(ValueError, match="no lr"):
            call()
    assert not x.detach().any()


def test_momentum_has_y_for_training_and_x_for_the_end() -> None:
    method, x = optimal_method(F.H, 3, goal="linear", strong_convexity=0.05, momentum=True), parameter()
    optimizer = CompressedSGD([x], method)
    for step in range(10):
        if step == 5:
            optimizer, saved = CompressedSGD([x], method, seed=7), copy.deepcopy(optimizer.state_dict())
            optimizer.load_state_dict(saved)
        optimizer.step(lambda: distance(x))
    y = x.detach().clone()
    optimizer.eval()
    record = run(F, method, iterations=10, seeds=1, seed=0)
    np.testing.assert_allclose(x.detach(), record.final_points[0], rtol=1e-11)
    optimizer.train()
    np.testing.assert_allclose(x.detach(), y, rtol=1e-14)


@pytest.mark.parametrize("make", BOTH)
def test_small_types_states_and_gradients_from_before(make: Any) -> None:
    """A closure would replace such gradients: what was accumulated was lost without a word."""
    for dtype in (torch.float32, torch.bfloat16):
        x = parameter(dtype)
        optimizer = make(x)
        for _ in range(60):
            loss = optimizer.step(lambda x=x: distance(x))
        assert x.dtype == dtype and loss < 0.5 * distance(parameter(dtype))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for other in (torch.optim.SGD([x]), *(one(x) for one in BOTH if one is not make)):
        with pytest.raises(ValueError, match=f"must be that of a {type(optimizer).__name__}"):
            optimizer.load_state_dict(other.state_dict())
    optimizer.step(lambda x=x: distance(x))  # feedback took no lr from the other
    x = parameter()
    optimizer = make(x)
    optimizer.step(lambda: distance(x))
    after = x.detach().clone()
    distance(x).backward()
    with pytest.raises(RuntimeError, match="gradients from before"):
        optimizer.step(lambda: distance(x))
    assert torch.equal(x, after)
    optimizer.zero_grad(set_to_none=False)
    optimizer.step(lambda: distance(x))
    assert not torch.equal(x, after)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: CompressedSGD([x], RandK(12, 3)), TypeError, r"CompressedStep\.of\(D, sketch\)"),
        (lambda x: CompressedSGD([x], None), TypeError, "compressor"),
        (lambda x: CompressedSGD([x], optimal_method(np.eye(3), 1)), ValueError, "d=3, but .* 12 entries"),
        (lambda x: CompressedSGD([x], COMPRESSORS["subspace"], lr=-1.0), ValueError, "lr"),
        (lambda x: CompressedSGD([x], COMPRESSORS["subspace"], weight_decay=-1.0), ValueError, "weight_decay"),
        (lambda x: CompressedSGD([x], COMPRESSORS["subspace"], seed=None), TypeError, "seed"),  # type: ignore[arg-type]
        (lambda x: CompressedSGD([x, parameter(torch.float32)], COMPRESSORS["subspace"]), ValueError, "dtype"),
        (lambda x: FeedbackSGD([x], Feedback(F.H, 3, clients=2)), ValueError, "clients=2, but there are 1"),
        (lambda x: FeedbackSGD([x], Feedback(np.eye(3), 1)), ValueError, "d=3, but .* 12 entries"),
        (lambda x: FeedbackSGD([x], F.H), TypeError, "feedback"),
        (lambda x: FeedbackSGD([x], Feedback(F.H, 3)).step(), TypeError, r"step\(closure\)"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(parameter())


def test_a_state_stays_as_it_was_saved() -> None:
    """Vectors that went on changing belonged to other counts and, after a step that was skipped, to another s."""
    x = parameter()
    optimizer = FeedbackSGD([x], Feedback(F.H, 3))
    for _ in range(5):
        optimizer.step(lambda: distance(x))
    saved, start = optimizer.state_dict(), x.detach().clone()
    ends = []
    for _ in range(2):
        optimizer.load_state_dict(saved)
        with torch.no_grad():
            x.copy_(start)
        for _ in range(6):
            optimizer.step(lambda: distance(x))
        ends.append(x.detach().clone())
    assert torch.equal(*ends)


def test_a_state_with_other_settings_is_not_continued() -> None:
    """The weight decay of the state would make L larger than the basis was made for."""
    x = parameter()
    optimizer, other = (FeedbackSGD([x], Feedback(F.H, 3), weight_decay=decay) for decay in (0.0, 1.0))
    with pytest.warns(RuntimeWarning, match="nothing remembered"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["weight_decay"] == 0.0


@pytest.mark.parametrize("kind", ["sketch", "momentum", "feedback"])
def test_a_gradient_that_is_not_finite_moves_nothing(kind: str) -> None:
    """It made every parameter of every process NaN; the warning is about the line that called step."""
    x = parameter()
    asked = {"goal": "linear", "strong_convexity": 0.05, "momentum": True} if kind == "momentum" else {}
    optimizer: Any = FeedbackSGD([x], Feedback(F.H, 3)) if kind == "feedback" else None
    optimizer = optimizer or CompressedSGD([x], optimal_method(F.H, 3, **asked))
    for _ in range(2):
        optimizer.step(lambda: distance(x))
    before = x.detach().clone()
    with pytest.warns(RuntimeWarning, match=r"not finite; no change counts \(1 such steps\)") as seen:
        optimizer.step(lambda: distance(x) * torch.inf)
    assert torch.equal(x, before) and optimizer.skipped == 1
    assert [one.filename for one in seen] == [__file__]
    for _ in range(200):
        loss = optimizer.step(lambda: distance(x))
    assert loss < 0.1 * distance(before)
    again = copy.deepcopy(optimizer.state_dict())
    optimizer.skipped = 0
    optimizer.load_state_dict(again)
    assert optimizer.skipped == 1


@pytest.mark.parametrize("name", ["settings", "processes", "rank"])
def test_a_state_that_does_not_belong_is_not_continued(name: str) -> None:
    x = parameter()
    optimizer = FeedbackSGD([x], Feedback(F.H, 3))
    for _ in range(7):
        optimizer.step(lambda: distance(x))
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    assert optimizer._s.any() and optimizer.rounds == 7
    saved["compression"][name] += 1
    with pytest.warns(RuntimeWarning, match="nothing remembered"):
        optimizer.load_state_dict(saved)
    assert not optimizer._s.any() and not optimizer._memory.any() and optimizer.rounds == 0
    for _ in range(40):
        loss = optimizer.step(lambda: distance(x))
    assert loss < 1e-4


def test_gradients_that_are_missing_or_sparse() -> None:
    x, unused = parameter(), parameter()
    optimizer = CompressedSGD([x, unused], CompressedStep(Identity(24)))
    distance(x).backward()
    with pytest.raises(RuntimeError, match=r"1 of the 2 parameters of a group have no gradient .*number 1"):
        optimizer.step()
    assert not x.detach().any()
    embedding = nn.Embedding(3, 1, sparse=True)
    embedding(torch.tensor([0])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        CompressedSGD(embedding.parameters(), CompressedStep(Identity(3))).step()
