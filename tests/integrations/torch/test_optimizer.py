"""MatrixSGD is an optimizer like those of PyTorch, with a matrix for a stepsize."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import nn

from stepsize_opt import Identity, optimal_stepsize
from stepsize_opt.torch import MatrixSGD, certified_cast
from stepsize_validation import run
from stepsize_validation.data import random_quadratic

RNG = np.random.default_rng(0)
D = np.cov(RNG.standard_normal((6, 40)))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2, dtype=torch.float64)  # a weight of four entries, a bias of two


def loss_of(net: nn.Module) -> torch.Tensor:
    return (net(torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)) ** 2).sum()


def flat(net: nn.Module, *, gradient: bool = False) -> Any:
    return torch.cat([(p.grad if gradient else p).detach().reshape(-1) for p in net.parameters()]).numpy()


@pytest.mark.parametrize(
    ("stepsize", "dense"),
    [
        (0.25, 0.25 * np.eye(6)),
        (np.diagonal(D).copy(), np.diag(np.diagonal(D))),
        (D, D),
        (torch.tensor(D), D),
        (aslinearoperator(D), D),
    ],
    ids=["number", "vector", "matrix", "tensor", "operator"],
)
def test_a_step_is_x_minus_D_g(stepsize: Any, dense: Any) -> None:
    net = model()
    optimizer = MatrixSGD(net.parameters(), stepsize, lr=0.5)
    loss_of(net).backward()
    expected = flat(net) - 0.5 * dense @ flat(net, gradient=True)
    optimizer.step()
    np.testing.assert_allclose(flat(net), expected, rtol=1e-14)


def test_groups_and_names_have_stepsizes_of_their_own() -> None:
    block = np.zeros((6, 6))
    block[:4, :4], block[4:, 4:] = D[:4, :4], 0.5 * np.eye(2)
    by_group, by_name = model(), model()
    groups = [{"params": [by_group.weight], "stepsize": D[:4, :4]}, {"params": [by_group.bias]}]
    for net, optimizer in (
        (by_group, MatrixSGD(groups, 0.5)),
        (by_name, MatrixSGD(by_name.named_parameters(), {"weight": D[:4, :4], "bias": 0.5})),
    ):
        loss_of(net).backward()
        expected = flat(net) - block @ flat(net, gradient=True)
        optimizer.step()
        np.testing.assert_allclose(flat(net), expected, rtol=1e-14)


def test_closures_schedulers_and_state_dicts() -> None:
    net = model()
    optimizer = MatrixSGD(net.parameters(), D)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(net)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first is not None and first.item() == loss_of(model()).item()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(net.state_dict())
    optimizer.step(closure)
    end = flat(net)
    net.load_state_dict(weights)
    other = MatrixSGD(net.parameters(), np.eye(6))
    other.load_state_dict(saved)
    optimizer.zero_grad()
    loss_of(net).backward()
    other.step()
    np.testing.assert_array_equal(flat(net), end)


def test_an_operator_is_not_saved() -> None:
    net = model()
    saved = MatrixSGD(net.parameters(), aslinearoperator(D)).state_dict()
    MatrixSGD(net.parameters(), aslinearoperator(D)).load_state_dict(saved)
    with pytest.raises(ValueError, match="saved with an operator"):
        MatrixSGD(net.parameters(), D).load_state_dict(saved)


def test_one_process_without_compression_is_the_runner() -> None:
    f = random_quadratic(np.geomspace(0.1, 1.0, 6), np.random.default_rng(2))
    best = optimal_stepsize(f.H, Identity(6), structure="diagonal").D
    x = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer, H, end = MatrixSGD([x], np.diagonal(best)), torch.tensor(f.H), torch.tensor(f.minimiser)
    for _ in range(40):
        optimizer.zero_grad()
        (0.5 * (x - end) @ H @ (x - end)).backward()
        optimizer.step()
    record = run(f, best, Identity(6), iterations=40, seeds=1)
    np.testing.assert_allclose(x.detach().numpy(), record.final_points[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("stepsize", "message"),
    [
        (None, "a group has no stepsize"),
        (np.eye(5), r"6 entries, so D must have shape \(6,\) or \(6, 6\), got \(5, 5\)"),
        (aslinearoperator(np.eye(5)), r"got \(5, 5\)"),
        (np.full(6, np.nan), "finite"),
        (-1.0, "must be positive"),
        ({"weight": D[:4, :4]}, "named parameters"),
        ("large", "must hold real numbers"),
    ],
)
def test_what_does_not_fit_is_refused(stepsize: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        MatrixSGD(model().parameters(), stepsize)


def test_names_that_do_not_match_are_told() -> None:
    with pytest.raises(ValueError, match=r"without a stepsize \['bias'\], not a parameter \['w'\]"):
        MatrixSGD(model().named_parameters(), {"weight": 1.0, "w": 1.0})


def test_float32_takes_no_digits_away() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="certified_cast"):
        MatrixSGD(net.parameters(), D)
    rounded = D.astype(np.float32)
    MatrixSGD(net.parameters(), rounded.astype(float))
    (group,) = MatrixSGD(net.parameters(), 0.1).param_groups
    assert 0.1 - 1e-8 < group["stepsize"] < 0.1  # the nearest float32 is above 0.1
    assert group["stepsize"] == np.float32(group["stepsize"])


def test_gradients_that_are_missing_or_sparse() -> None:
    net = model()
    optimizer = MatrixSGD(net.parameters(), D)
    optimizer.step()  # no gradient at all: nothing to do
    net.weight.sum().backward()
    with pytest.raises(RuntimeError, match="2 parameters share a stepsize, and 1 of them"):
        optimizer.step()
    embedding = nn.Embedding(3, 1, sparse=True)
    embedding(torch.tensor([0])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        MatrixSGD(embedding.parameters(), 1.0).step()


@pytest.mark.parametrize("stepsize", [np.array([0.5, 0.25, 1.0]), np.diag([0.5, 0.25, 1.0]), 0.5])
def test_a_loaded_stepsize_is_read_as_the_constructor_reads_it(stepsize: Any) -> None:
    """Whatever the file holds: digits that the dtype lacks, another size, a zero."""
    saved = MatrixSGD([nn.Parameter(torch.zeros(3, dtype=torch.float64))], stepsize).state_dict()
    single = nn.Parameter(torch.zeros(3))
    optimizer = MatrixSGD([single], 1.0)
    optimizer.load_state_dict(saved)
    single.grad = torch.ones(3)
    optimizer.step()
    assert single.dtype == torch.float32 and single[0] == -0.5
    other = copy.deepcopy(saved)
    other["param_groups"][0]["stepsize"] = 0.1 * np.ones(3) if np.ndim(stepsize) else 1e-60
    message = "digits that" if np.ndim(stepsize) else "is zero in"
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(other)
    with pytest.raises(ValueError, match=r"D must have shape \(3,\) or \(3, 3\)"):
        optimizer.load_state_dict({**saved, "param_groups": [{**saved["param_groups"][0], "stepsize": np.ones(1)}]})
    optimizer.step()  # a refused load leaves the optimizer as it was
    assert single[0] == -1.0


def test_copies_and_pickles_keep_the_operator() -> None:
    net = model()
    for again in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        other = again(MatrixSGD(net.parameters(), aslinearoperator(D)))
        for p in other.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        other.step()
        moved = torch.cat([p.detach().reshape(-1) for p in other.param_groups[0]["params"]]).numpy()
        np.testing.assert_allclose(moved, flat(net) - D.sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("stepsize", "message"),
    [
        (np.array([[1.0, 0.5], [-0.5, 1.0]]), "must be symmetric"),
        (-np.eye(2), "must be positive definite"),
        (np.array([0.0, 1.0]), "must be positive definite"),
        (1e-50, "is zero in torch.float32"),
    ],
)
def test_what_is_no_stepsize_is_refused(stepsize: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MatrixSGD([nn.Parameter(torch.zeros(2))], stepsize)


def test_the_lr_of_a_group_is_read_too() -> None:
    for lr in (-1.0, float("nan"), 0):
        with pytest.raises(ValueError, match="lr must be a finite positive number"):
            MatrixSGD([{"params": [nn.Parameter(torch.zeros(2))], "lr": lr}], 1.0)


def test_bfloat16_parameters() -> None:
    L = np.array([[2.0, 1.0], [1.0, 3.0]])
    cast = certified_cast(optimal_stepsize(L, Identity(2)).D, L, Identity(2), torch.bfloat16)
    for stepsize in (cast, aslinearoperator(cast.double().numpy())):
        x = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        x.grad = torch.ones_like(x)
        MatrixSGD([x], stepsize).step()
        assert x.tolist() == (-(cast @ torch.ones(2, dtype=torch.bfloat16))).tolist()
