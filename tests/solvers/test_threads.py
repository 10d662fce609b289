"""Threads and what belongs to the whole process: standard streams, BLAS threads, warnings, compiled models."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import numpy as np
import pytest

from shared.reference_problems import random_smoothness
from stepsize_opt import RandK, optimal_stepsize
from stepsize_opt.results import StepsizeResult
from stepsize_solvers.process.state import Shared, without_warnings

pytestmark = pytest.mark.slow

# The first thread to enter is the first to leave, while the second is inside: the order that overwrites saved state.
OVERLAP = """
from threading import Event, Thread

def overlap(make):
    entered, left = Event(), Event()
    def first():
        with make():
            entered.set()
            second_is_in.wait()
        left.set()
    def second():
        entered.wait()
        try:
            with make():
                second_is_in.set()
                left.wait()
                raise KeyError
        except KeyError:
            pass
    second_is_in = Event()
    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OVERLAP + code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})


def test_standard_streams_come_back_when_threads_overlap() -> None:
    done = run(
        "import os, sys\n"
        "from stepsize_solvers.process.state import silenced\n"
        "def noisy():\n"
        "    return silenced\n"
        "overlap(noisy)\n"
        "before = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0\n"
        "for _ in range(20):\n"
        "    with silenced:\n"
        "        os.write(1, b'lost'); os.write(2, b'lost')\n"
        "assert not before or len(os.listdir('/proc/self/fd')) == before\n"
        "os.write(1, b'out'); os.write(2, b'err')\n"
    )
    assert (done.stdout, done.stderr) == ("out", "err")


def test_streams_come_back_after_solves_in_threads() -> None:
    done = run(
        "import numpy as np\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from stepsize_opt import RandK, optimal_stepsize\n"
        "L = np.diag(np.arange(1.0, 6.0)) + 0.5\n"
        "def solve(k):\n"
        "    return optimal_stepsize(L, RandK(5, k), solver='sdpa', tol=1e-5).status\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    print(set(pool.map(solve, [1, 2, 3, 4] * 5)))\n"
    )
    assert done.stdout == "{'optimal'}\n"


def test_blas_has_its_threads_back_when_native_solves_overlap() -> None:
    done = run(
        "from threadpoolctl import threadpool_info\n"
        "import numpy as np\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from stepsize_solvers.numerics.linalg import blas_threads\n"
        "from stepsize_opt import RandK, optimal_stepsize\n"
        "def threads():\n"
        "    return {pool['num_threads'] for pool in threadpool_info() if pool['user_api'] == 'blas'}\n"
        "before = threads()\n"
        "overlap(lambda: blas_threads(50))\n"
        "assert threads() == before, (before, threads())\n"
        "rng = np.random.default_rng(0)\n"
        "def solve(d):\n"
        "    G = rng.standard_normal((d, d))\n"
        "    return optimal_stepsize(G @ G.T + np.eye(d), RandK(d, 4)).status\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    print(set(pool.map(solve, [20, 30, 40] * 8)))\n"
        "assert threads() == before, (before, threads())\n"
        "with blas_threads(50):\n"
        "    assert threads() == {1}\n"
        "with blas_threads(5000), blas_threads(5000):\n"
        "    pools = [pool for pool in threadpool_info() if pool['user_api'] == 'blas']\n"
        "    assert sorted(pool['num_threads'] for pool in pools) == [1] * (len(pools) - 1) + [2], pools\n"
        "    assert [pool['num_threads'] for pool in pools if 'numpy' in pool['filepath']] in ([2], []), pools\n"
        "assert threads() == before, (before, threads())\n",
        OPENBLAS_NUM_THREADS="2",
    )
    assert done.stdout == "{'optimal'}\n"


def test_a_whole_call_has_one_limit_of_threads() -> None:
    """Reductions, solver, repair and certificate apply the map: each time BLAS has the threads that suit the size."""
    done = run(
        "from threadpoolctl import threadpool_info\n"
        "import numpy as np\n"
        "from stepsize_opt import RandK, certify, compare, optimal_distributed_stepsize, optimal_stepsize\n"
        "from stepsize_solvers.programs import DiagonalPlusScaled\n"
        "def threads():\n"
        "    return {pool['num_threads'] for pool in threadpool_info() if pool['user_api'] == 'blas'}\n"
        "seen = set()\n"
        "class Watched(DiagonalPlusScaled):\n"
        "    def apply(self, M):\n"
        "        seen.update(threads())\n"
        "        return super().apply(M)\n"
        "    @property\n"
        "    def hadamard_matrix(self):\n"
        "        seen.update(threads())\n"
        "        return super().hadamard_matrix\n"
        "class Law(RandK):\n"
        "    @property\n"
        "    def map(self):\n"
        "        Q = super().map\n"
        "        return Watched(Q.alpha, Q.beta, Q.roundings)\n"
        "G = np.random.default_rng(0).standard_normal((20, 20))\n"
        "L, law, before = G @ G.T + np.eye(20), Law(20, 5), threads()\n"
        "targets = dict(epsilon2=1.0, initial_gap=1.0, delta_inf=0.1)\n"
        "result = optimal_stepsize(L, law)\n"
        "for call in (lambda: optimal_stepsize(L, law, tol=1e-10),\n"
        "             lambda: certify(result.D, L, law, dual=result.dual),\n"
        "             lambda: compare(L, law),\n"
        "             lambda: optimal_distributed_stepsize([L, 2.0 * L], law, **targets)):\n"
        "    seen.clear()\n"
        "    call()\n"
        "    print(sorted(seen), threads() == before)\n",
        OPENBLAS_NUM_THREADS="2",
    )
    assert done.stdout == "[1] True\n" * 4


def test_warnings_are_shown_again_when_threads_overlap() -> None:
    both = Barrier(2)
    first_left = Barrier(2)

    def first() -> None:
        with without_warnings:
            both.wait()
        first_left.wait()

    def second() -> None:
        with without_warnings:
            both.wait()
            first_left.wait()

    before = list(warnings.filters)
    threads = [Thread(target=first), Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


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


@pytest.mark.parametrize("name", ["clarabel", "cvxopt", "scs"])
def test_solves_in_threads_give_the_same_bits_as_one_by_one(name: str) -> None:
    """Programs of one shape share a compiled model, and cvxopt keeps its options in the process."""
    problems = [(random_smoothness(6, 10.0 ** (1 + i % 3), i), 1 + i % 5, 10.0 ** -(4 + i % 3)) for i in range(24)]

    def solve(problem: tuple[np.ndarray, int, float]) -> StepsizeResult:
        L, k, tol = problem
        return optimal_stepsize(L, RandK(6, k), solver=name, tol=tol)

    alone = [solve(problem) for problem in problems]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(solve, problems))
    for one, other in zip(alone, together, strict=True):
        assert one.status == other.status == "optimal"
        np.testing.assert_array_equal(one.D, other.D)
