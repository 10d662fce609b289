"""Threads and what belongs to the whole process: standard streams, BLAS threads, warnings, compiled models."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shared.reference_problems import random_smoothness
from stepsize_opt import RandK, optimal_stepsize
from stepsize_opt.results import StepsizeResult
from stepsize_solvers.process import Shared

pytestmark = pytest.mark.slow

BEGIN = """
import os, sys, warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from threadpoolctl import threadpool_info
import numpy as np
from stepsize_opt import RandK, certify, compare, optimal_distributed_stepsize, optimal_stepsize
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.process import without_warnings
from stepsize_solvers.programs import DiagonalPlusScaled

def overlap(make):
    # The first to enter is the first to leave, while the second is inside: the order that overwrites saved state.
    entered, both, left = Event(), Event(), Event()
    def first():
        with make():
            entered.set()
            both.wait()
        left.set()
    def second():
        entered.wait()
        try:
            with make():
                both.set()
                left.wait()
                raise KeyError
        except KeyError:
            pass
    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

def solve(k, d=5, **options):
    return optimal_stepsize(random(d), RandK(d, k), **options).status

def random(d):
    G = np.random.default_rng(d).standard_normal((d, d))
    return G @ G.T + np.eye(d)

def threads():
    return {pool['num_threads'] for pool in threadpool_info() if pool['user_api'] == 'blas'}
"""
STREAMS = """
with ThreadPoolExecutor(2) as pool:
    assert {*pool.map(lambda k: solve(k, solver='sdpa', tol=1e-5), [1, 2])} == {'optimal'}
"""
WARNINGS = """
before = list(warnings.filters)
overlap(lambda: without_warnings)
assert list(warnings.filters) == before
"""
BLAS = """
before = threads()
overlap(lambda: blas_threads(50))
assert threads() == before, (before, threads())
with ThreadPoolExecutor(4) as pool:
    assert {*pool.map(lambda d: solve(4, d), [20, 30, 40] * 8)} == {'optimal'}
assert threads() == before, (before, threads())
with blas_threads(50):
    assert threads() == {1}
with blas_threads(5000), blas_threads(5000):
    assert threads() == {1}
assert threads() == before, (before, threads())
"""
# Reductions, solver, repair and certificate apply the map: each time BLAS has the threads that suit the size.
WHOLE_CALLS = """
seen = set()
class Watched(DiagonalPlusScaled):
    def apply(self, M):
        seen.update(threads())
        return super().apply(M)
    @property
    def hadamard_matrix(self):
        seen.update(threads())
        return super().hadamard_matrix
class Law(RandK):
    @property
    def map(self):
        Q = super().map
        return Watched(Q.alpha, Q.beta, Q.roundings)
L, law, before = random(20), Law(20, 5), threads()
targets = dict(epsilon2=1.0, initial_gap=1.0, delta_inf=0.1)
result = optimal_stepsize(L, law)
for call in (lambda: optimal_stepsize(L, law, tol=1e-10), lambda: certify(result.D, L, law, dual=result.dual),
             lambda: compare(L, law), lambda: optimal_distributed_stepsize([L, 2.0 * L], law, **targets)):
    seen.clear()
    call()
    assert (seen, threads()) == ({1}, before)
"""


@pytest.mark.parametrize("code", [STREAMS, WARNINGS, BLAS, WHOLE_CALLS], ids=["streams", "warnings", "BLAS", "calls"])
def test_the_state_of_the_process_comes_back(code: str) -> None:
    command = [sys.executable, "-c", BEGIN + code + "os.write(1, b'out'); os.write(2, b'err')"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out", "err")


def test_a_context_that_does_not_open_is_not_counted_as_open() -> None:
    attempts = []

    def fails() -> Shared:
        attempts.append(1)
        raise OSError

    shared = Shared(fails)
    for _ in range(2):
        with pytest.raises(OSError), shared:
            pass
    assert len(attempts) == 2


@pytest.mark.parametrize("name", ["clarabel", "scs"])
def test_solves_in_threads_give_the_same_bits_as_one_by_one(name: str) -> None:
    """cvxpy has one solver object for the whole process, and numbers its variables by a counter of the process."""
    problems = [(random_smoothness(6, 10.0 ** (1 + i % 3), i), 1 + i % 5, 10.0 ** -(4 + i % 3)) for i in range(24)]

    def solve(problem: tuple[np.ndarray, int, float]) -> StepsizeResult:
        L, k, tol = problem
        return optimal_stepsize(L, RandK(6, k), solver=name, tol=tol)

    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(solve, problems))
    for one, other in zip(map(solve, problems), together, strict=True):
        assert one.status == other.status == "optimal"
        np.testing.assert_array_equal(one.D, other.D)
