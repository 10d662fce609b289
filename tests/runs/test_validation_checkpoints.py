"""Checkpoints of runs: continued to the same bits, refused when they belong to another run or are damaged."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from shared.resumed_runs import CASES, CLIENTS, COINS, KINDS, NODE, STEPS, Case, finite, same_bits
from shared.small_data import small_data
from shared.strategies import LayeredCoins, sketches
from stepsize_opt.inputs.digests import digest
from stepsize_opt.inputs.files import atomic_write
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.objectives import LeastSquares, LogisticRegression, Quadratic
from stepsize_opt.sketches import BernQ, DiagonalSketch, RandK, Sketch
from stepsize_validation.runs.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from stepsize_validation.runs.record import Run
from stepsize_validation.runs.runner import run


@settings(max_examples=40, deadline=None)
@given(sketch=sketches(6), at=st.integers(1, 11))
def test_a_run_with_any_sketch_is_continued(sketch: Sketch, at: int) -> None:
    def steps(checkpoint: Path | None = None) -> Run:
        D = 0.02 * np.eye(6)
        return run(NODE, D, sketch, iterations=12, seeds=2, checkpoint=checkpoint, checkpoint_every=at)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        whole = steps()
        assert same_bits(steps(path), whole)
        assert read_checkpoint(path)[0]["k"] == 12 - (12 % at or at)
        assert same_bits(steps(path), whole)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}, {case.algorithm}")
def test_a_run_continued_is_the_run(case: Case, tmp_path: Path) -> None:
    """From a checkpoint inside the first chunk of diagonal draws, at its end, and before the last step."""
    whole = case.run()
    for every in (STEPS // 2, 256, STEPS - 1):
        path = tmp_path / f"{every}.npz"
        assert same_bits(case.run(path, every), whole)
        assert read_checkpoint(path)[0]["k"] == every
        assert same_bits(case.run(path, every), whole)


def test_killed_ten_times_and_continued_is_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shared.resumed_runs", str(tmp_path), "10"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == len(CASES)
    assert [report for report in reports if not report["same"]] == []
    assert all(report["left"] == ["run.npz", "whole.npz"] for report in reports), reports
    # A slow machine may let a child end before its kill, but not many.
    assert sum(report["met"] for report in reports) > 5 * len(CASES)


def short(checkpoint: Path | None, **change: Any) -> Any:
    arguments: dict[str, Any] = {
        "objective": NODE,
        "D": 0.1 * np.eye(6),
        "sketch": RandK(6, 2),
        "iterations": 20,
        "seeds": 2,
        "checkpoint": checkpoint,
        "checkpoint_every": 6,
    }
    return run(**arguments | change)


def coins(q: float) -> DiagonalSketch:
    """All with the same moments as given, and the same text."""
    return DiagonalSketch.from_moments(
        COINS.second_moment_matrix, lambda rng, size: BernQ([q, 0.8], [2, 4]).sample_diagonal(rng, size)
    )


def next_number(x: np.ndarray, *place: int) -> np.ndarray:
    out = np.array(x)
    out[place] = np.nextafter(out[place], np.inf)
    return out


class Opaque:
    """An objective that does not show what it holds."""

    d, lower_bound, smoothness_is_estimate = 6, 0.0, False

    def __init__(self, scale: float) -> None:
        self._parts = {"scale": scale}

    def smoothness(self) -> np.ndarray:
        return self._parts["scale"] * np.eye(6)

    def value(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(0.5 * self._parts["scale"] * np.sum((X - 1.0) ** 2, axis=1))

    def gradient(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self._parts["scale"] * (X - 1.0))


A, B = RandK(6, 2), BernQ(0.5, 6)
SUPPORT = np.array([[2.0, 0, 2, 0, 2, 0], [0.0, 2, 0, 2, 0, 2]])
QUADRATIC = Quadratic(np.diag(np.arange(1.0, 7.0)), np.ones(6))
# What the two runs differ in: the name that the refusal must mention, and the arguments of each.
OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "seed": ("seed", {}, {"seed": 1}),
    "seeds": ("seeds", {}, {"seeds": 3}),
    "iterations": ("iterations", {}, {"iterations": 21}),
    "algorithm": ("algorithm", {}, {"algorithm": "det-CGD2"}),
    "name of the algorithm": ("algorithm", {}, {"algorithm": "CGD"}),
    "start": ("start", {}, {"start": np.full(6, 1e-300)}),
    "last bit of D": ("D", {}, {"D": next_number(0.1 * np.eye(6), 0, 0)}),
    "last bit of the data": ("objective", {}, {"objective": replace(NODE, A=next_number(NODE.A, 3, 2))}),
    "a label": ("objective", {}, {"objective": replace(NODE, b=np.append(-NODE.b[0], NODE.b[1:]))}),
    "regulariser": ("objective", {}, {"objective": replace(NODE, reg=0.11)}),
    "kind of objective": ("objective", {}, {"objective": LeastSquares(NODE.A, NODE.b, NODE.reg)}),
    "sparse data": ("objective", {}, {"objective": replace(NODE, A=sparse.csr_array(NODE.A))}),
    "minimiser": ("objective", {"objective": QUADRATIC}, {"objective": replace(QUADRATIC, minimiser=np.zeros(6))}),
    "opaque objective": ("objective", {"objective": Opaque(1.0)}, {"objective": Opaque(1.1)}),
    "order of the clients": (
        "objective",
        {"objective": CLIENTS},
        {"objective": Federated(CLIENTS.clients[::-1])},
    ),
    "order of opaque clients": (
        "objective",
        {"objective": Federated((Opaque(1.0), Opaque(2.0)))},
        {"objective": Federated((Opaque(2.0), Opaque(1.0)))},
    ),
    "AAB and ABB": (
        "sketch",
        {"objective": CLIENTS, "sketch": [A, A, B]},
        {"objective": CLIENTS, "sketch": [A, B, B]},
    ),
    "k": ("sketch", {}, {"sketch": RandK(6, 3)}),
    "support": (
        "sketch",
        {"sketch": DiagonalSketch.from_support(SUPPORT, [0.5, 0.5])},
        {"sketch": DiagonalSketch.from_support(SUPPORT[:, [1, 0, 2, 3, 4, 5]], [0.5, 0.5])},
    ),
    "moments": (
        "sketch",
        {"sketch": coins(0.5)},
        {"sketch": DiagonalSketch.from_moments(2.0 * COINS.second_moment_matrix, LayeredCoins(COINS))},
    ),
    "sampler": ("sketch", {"sketch": coins(0.5)}, {"sketch": coins(0.6)}),
    "matrices": ("sketch", {"sketch": finite(6, 0.3)}, {"sketch": finite(6, 0.4)}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_run_is_refused(what: str, tmp_path: Path) -> None:
    name, one, other = OTHERS[what]
    path = tmp_path / "run.npz"
    first = short(path, **one)
    message = f"checkpoint {path} belongs to another run: different .*{name}.*; remove the file, or name another"
    with pytest.raises(CheckpointError, match=message):
        short(path, **one | other)
    assert same_bits(short(path, **one), first)


def test_what_does_not_change_a_run_does_not_refuse_it(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    first = short(path)
    again = {"D": (0.1 * np.eye(6)).tolist(), "seed": np.int64(0), "seeds": 2.0, "start": np.zeros(6)}
    assert same_bits(short(path, **again, checkpoint_every=5, on_divergence="stop"), first)
    rebuilt = LogisticRegression.from_dataset(small_data(), 0.1)
    assert same_bits(short(path, objective=rebuilt), first)
    assert same_bits(run(NODE, 0.1 * np.eye(6), RandK(6, 2), iterations=20, seeds=2, checkpoint=str(path)), first)


def test_a_sampler_that_does_not_draw_again_what_it_drew_is_refused(tmp_path: Path) -> None:
    """It counts its calls instead of taking all that it needs from the generator."""

    class Drifting:
        calls = 0

        def __call__(self, rng: np.random.Generator, size: int) -> np.ndarray:
            Drifting.calls += 1
            known = size == 256  # the draws by which samplers are told apart
            own = np.random.default_rng(0 if known else Drifting.calls)
            return COINS.sample_diagonal(own, size)

    sketch = DiagonalSketch.from_moments(COINS.second_moment_matrix, Drifting())
    short(tmp_path / "run.npz", objective=CLIENTS, sketch=sketch)
    with pytest.raises(CheckpointError, match="do not draw again what they drew"):
        short(tmp_path / "run.npz", objective=CLIENTS, sketch=sketch)


def changed(name: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        into = meta if name in meta else arrays
        into[name] = value(into[name])

    return change


def without(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
        (meta if name in meta else arrays).pop(name)

    return change


PER_STEP = ("norms", "euclidean", "descent", "metric_norms", "decrease", "sent")
ARRAYS = (*PER_STEP, "X", "values", "margins", "generators")
DAMAGE: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    **{f"{name} missing": without(name) for name in (*ARRAYS, "k", "drawn", "format", "objective", "sketch")},
    **{f"{name} broadcastable": changed(name, lambda x: x[:1]) for name in ARRAYS},
    **{f"{name} a column": changed(name, lambda x: x[:, :1]) for name in ARRAYS},
    **{f"{name} of another type": changed(name, lambda x: x.astype(np.float32)) for name in ARRAYS},
    **{f"{name} not a number": changed(name, lambda x: np.full_like(x, np.nan)) for name in ARRAYS[:-1]},
    **{
        f"k = {value!r}": changed("k", lambda _, value=value: value)
        for value in (-1, 0, 17, 20, 10**6, 10**30, True, 18.0, "18", None, [18])
    },
    "another chunk": changed("drawn", lambda _: ""),
    "generators out of range": changed("generators", lambda x: x + np.uint64(2**33)),
    "generators elsewhere": changed("generators", lambda x: x + np.array([0, 1, 0, 0], dtype=np.uint64)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_checkpoint_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    arguments: dict[str, Any] = {"sketch": RandK(6, 1)}  # with margins
    short(path, **arguments)
    meta, arrays = read_checkpoint(path)
    assert {*arrays} == {*ARRAYS} and meta["k"] == 18
    DAMAGE[what](meta, arrays)
    write_checkpoint(path, meta, arrays)
    with pytest.raises(CheckpointError, match=f"checkpoint {path} .*; remove the file, or name another"):
        short(path, **arguments)


def test_a_file_with_changed_bytes_is_refused_or_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    first = short(path)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    broken = [good[: int(n)] for n in rng.integers(0, len(good), 60)]
    for place in rng.integers(0, len(good), 300):
        bytes_ = bytearray(good)
        bytes_[place] ^= 1 << int(rng.integers(8))
        broken.append(bytes(bytes_))
    refused = 0
    for content in [*broken, b"", b"nothing of ours", b"\x93NUMPY"]:
        path.write_bytes(content)
        try:
            assert same_bits(short(path), first)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 200
    np.save(tmp_path / "array.npy", np.ones(3))
    with pytest.raises(CheckpointError, match="not a checkpoint of this project"):
        short(tmp_path / "array.npy")


def test_the_entries_that_a_reader_needs_are_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a.npz", {"rows": []}, {"steps": np.ones(2)})
    assert read_checkpoint(tmp_path / "a.npz", ["rows"], ["steps"])[0] == {"rows": []}
    with pytest.raises(CheckpointError, match=r"a\.npz lacks key, values; remove the file"):
        read_checkpoint(tmp_path / "a.npz", ["rows", "key"], ["values"])
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path / "absent.npz")


def test_runs_that_share_a_path_all_end_right(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    seeds = [0, 0, 0, 1, 2, 0]
    expected = [short(None, seed=seed, iterations=60) for seed in seeds]

    def one(seed: int) -> Any:
        try:
            return short(path, seed=seed, iterations=60, checkpoint_every=2)
        except CheckpointError as error:  # one that started when the file of another was there
            return error

    with ThreadPoolExecutor(len(seeds)) as pool:
        found = list(pool.map(one, seeds))
    for record, right in zip(found, expected, strict=True):
        assert "belongs to another run" in str(record) or same_bits(record, right)
    assert any(not isinstance(record, CheckpointError) for record in found)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.npz"]


def write_often(path: Path, letter: int) -> None:
    for _ in range(15):
        with atomic_write(path) as file:
            for _ in range(8):
                file.write(bytes([letter]) * 1000)


def test_writers_in_several_processes_and_threads_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_bytes(b"x" * 8000)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_often, args=(path, letter)) for letter in b"ab"]
    for process in processes:
        process.start()
    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write_often, path, letter) for letter in b"cde"]
        while not all(writer.done() for writer in writers) or any(process.is_alive() for process in processes):
            content = path.read_bytes()
            assert len(content) == 8000 and len(set(content)) == 1
        for writer in writers:
            writer.result()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["shared"]


def test_a_write_that_fails_leaves_the_old_file_and_a_killed_one_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        file.write(b"half of the n")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and [*tmp_path.iterdir()] == [path]
    (tmp_path / "file.tmp").write_bytes(b"what a killed process left, and longer")
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new" and [*tmp_path.iterdir()] == [path]


def test_digests() -> None:
    different = [
        *KINDS.values(),
        None,
        1,
        1.0,
        True,
        "1",
        np.array(1),
        np.ones(2),
        np.ones((1, 2)),
        np.ones(2, dtype=np.float32),
        (1, (2, 3)),
        (1, 2, 3),
        ("ab", "c"),
        ("a", "bc"),
        0.0,
        -0.0,
        sparse.csr_array(np.eye(2)),
        np.eye(2),
        COINS.second_moment_matrix,
    ]
    assert len({digest(value) for value in different}) == len(different)
    unsorted = sparse.csr_array((np.array([2.0, 1.0, 1.0]), np.array([1, 0, 1]), np.array([0, 3, 3])), shape=(2, 2))
    assert digest(unsorted) == digest(sparse.csc_array(np.array([[1.0, 3.0], [0.0, 0.0]])))
    assert unsorted.nnz == 3  # the caller's matrix is as it was
    assert digest(np.asfortranarray(np.arange(6.0).reshape(2, 3))) == digest(np.arange(6.0).reshape(2, 3))

    class Plain(RandK):
        """Not a dataclass itself, so that it may hold more than the fields tell."""

    for value in (lambda: 1, object(), np.array([object()]), {"a": 1}, Plain(3, 1)):
        with pytest.raises(TypeError, match="cannot take a digest of"):
            digest(value)
