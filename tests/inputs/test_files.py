"""Files: written whole or not at all, JSON without infinities, and broken files that end in one clear line."""

from __future__ import annotations

import json
import math
import resource
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from scipy import io, sparse

from stepsize_opt import (
    BernQ,
    Direction,
    EstimatedSmoothness,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    certify,
    compare,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
    to_cvxpy,
)
from stepsize_opt.inputs.matrices import read_matrix
from stepsize_opt.large.stepsizes import BlockStepsize
from stepsize_opt.results import DistributedResult, StepsizeResult, SubspaceMethod
from stepsize_opt.saving import atomic_write, json_text, load_result, save_result
from stepsize_opt.sketches.base import plain_sketch, sketch_of_plain
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.root import main
from stepsize_validation.data import load_dataset
from stepsize_validation.properties.strategies import sketches_up_to

L = np.array([[2.0, 0.5, 0.0], [0.5, 3.0, 0.1], [0.0, 0.1, 1.0]])
RESULT = optimal_stepsize(L, RandK(3, 1))
CLIENTS = optimal_distributed_stepsize([L, 2.0 * L], RandK(3, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.5)


class TestAtomicWrite:
    def test_the_old_file_stays_until_the_new_one_is_complete(self, tmp_path) -> None:
        path = tmp_path / "x"
        path.write_bytes(b"old")
        path.chmod(0o640)
        with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
            file.write(b"new")
            file.flush()
            assert path.read_bytes() == b"old"
            raise ZeroDivisionError
        assert [p.name for p in tmp_path.iterdir()] == ["x"]
        assert path.read_bytes() == b"old"
        with atomic_write(str(path)) as file:
            file.write(b"new")
        assert [p.name for p in tmp_path.iterdir()] == ["x"]
        assert path.read_bytes() == b"new"
        assert path.stat().st_mode & 0o777 == 0o640

    def test_a_link_keeps_pointing_to_the_file(self, tmp_path) -> None:
        (tmp_path / "folder").mkdir()
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "folder" / "file")
        with atomic_write(link) as file:
            file.write(b"new")
        assert link.is_symlink()
        assert (tmp_path / "folder" / "file").read_bytes() == b"new"


def test_json_has_no_infinities() -> None:
    value = {"a": [math.inf, -math.inf, math.nan, np.float64("inf"), 1.5], "b": np.arange(2), "c": np.int64(3), 4: None}
    text = json_text(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": ["inf", "-inf", "nan", "inf", 1.5],
        "b": [0, 1],
        "c": 3,
        "4": None,
    }


def test_an_infinite_bound_is_saved_and_read(tmp_path) -> None:
    unproved = replace(RESULT.certificate, upper_bound=math.inf)
    stats = replace(RESULT.solver_stats, extra_stats={"history": [[-math.inf, 1.0]]})
    result = replace(RESULT, certificate=unproved, status="optimal_inaccurate", solver_stats=stats)
    again = StepsizeResult.load(result.save(tmp_path / "r"))
    assert again.certificate == unproved and again.solver_stats == stats
    assert again.gap == math.inf


class TestResults:
    def test_a_name_may_lack_its_ending(self, tmp_path) -> None:
        for name in ("x", "y.npz", "z.NPZ", "d = 0.5"):
            path = RESULT.save(tmp_path / name)
            for named in (tmp_path / name, str(path)):
                np.testing.assert_array_equal(StepsizeResult.load(named).D, RESULT.D)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["d = 0.5.npz", "x.npz", "y.npz", "z.NPZ"]
        with pytest.raises(FileNotFoundError, match=r"no file .*missing\.npz"):
            StepsizeResult.load(tmp_path / "missing")
        with pytest.raises(ValueError, match=r"path.*\.npz"):
            RESULT.save(tmp_path / "result.csv")
        assert not (tmp_path / "result.csv").exists()

    @given(sketch=sketches_up_to(5))
    def test_the_plain_form_of_a_sketch_keeps_every_float(self, sketch: Sketch) -> None:
        """Weights that add up to 1 only up to rounding are not divided by their sum once more."""
        assert sketch_of_plain(json.loads(json_text(plain_sketch(sketch)))) == sketch

    @pytest.mark.parametrize("name", ["stepsize_part_0", "stepsize_indices_0", "multiplier_part_0", "D", "meta"])
    def test_a_changed_part_is_noticed(self, tmp_path, name: str) -> None:
        """A larger D under the old certificate, another sketch's name: the digest ties them together."""
        path = RESULT.save(tmp_path / "r")
        arrays = _arrays(path)
        if name == "meta":
            arrays[name] = np.array(str(arrays[name]).replace('"k": 1', '"k": 2'))
        else:
            arrays[name] = (2 * arrays[name]).astype(arrays[name].dtype)
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match="changed"):
            StepsizeResult.load(path)

    @pytest.mark.parametrize(("name", "value"), [("upper_bound", "inf"), ("upper_bound", "nan"), ("feasible", False)])
    def test_no_file_has_a_status_that_its_certificate_contradicts(self, tmp_path, name: str, value: Any) -> None:
        path = RESULT.save(tmp_path / "r")
        meta, arrays = load_result(path, "StepsizeResult")
        meta["certificate"][name] = value
        save_result(path, "StepsizeResult", meta, arrays)
        with pytest.raises(ValueError, match=r"status optimal|contradict"):
            StepsizeResult.load(path)


FORGED: dict[str, Any] = {
    "nan": np.full((3, 3), np.nan),
    "negative": -np.eye(3),
    "text": np.full((3, 3), "1"),
    "shape": np.ones((0, 5)),
    "size": np.eye(4),
}
METHOD = optimal_method(L, 1)


@pytest.mark.parametrize(
    ("answer", "name", "forgery"),
    [*((answer, "D", name) for answer in (CLIENTS, compression_limit(L, 1)) for name in FORGED),
     (METHOD, "D", "nan"), (METHOD, "directions", "nan")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_an_array_that_no_result_has_is_not_read(answer: Any, name: str, forgery: str, tmp_path: Path) -> None:
    """Also with a digest that fits, as whoever rewrites a file can compute it."""
    _assert_not_read(answer, {name: FORGED[forgery]}, tmp_path)


THIN = LowRankPlusDiagonal(np.eye(5)[:, :2], 0.5)


@pytest.mark.parametrize("answer", [compression_limit(L, 1), optimal_method(L, 1)], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize(
    "values", [[0.2, math.nan, 0.3], ["a", "b", "c"], [0.3, 0.3], [], [0.2, 1.5, 0.2], [0, 0.5, 0.5]]
)
def test_probabilities_that_no_limit_has_are_not_read(answer: Any, values: Any, tmp_path: Path) -> None:
    _assert_not_read(answer, {"probabilities": np.array(values)}, tmp_path)


@pytest.mark.parametrize("A", [np.full((3, 3), np.nan), np.ones((0, 3)), np.zeros((3, 3)), 5.0 * np.eye(3), np.eye(4)])
def test_directions_that_no_method_has_are_not_read(A: Any, tmp_path: Path) -> None:
    _assert_not_read(optimal_method(L, 1), {"directions": A}, tmp_path)


@pytest.mark.parametrize("goal", ["descent", "euclidean"])
@pytest.mark.parametrize(
    "parts",
    [
        {"c": np.array(0.0)},
        {"c": np.array(5.0)},
        {"t": np.zeros(5)},
        {"t": np.ones(4)},
        {"t": np.full(5, 0.01)},
        {"U": np.ones((0, 5))},
        {"Z": np.zeros((1, 1))},
        {"Z": np.full((2, 2), np.nan)},
    ],
    ids=str,
)
def test_thin_directions_that_no_method_has_are_not_read(goal: Any, parts: Any, tmp_path: Path) -> None:
    answer = optimal_method(THIN, 2, goal=goal)
    np.testing.assert_array_equal(SubspaceMethod.load(answer.save(tmp_path / "true")).D @ np.eye(5), answer.D.todense())
    _assert_not_read(answer, parts, tmp_path)


@pytest.mark.parametrize("weights", [np.ones(2), np.array([1.0, math.nan, 1.0]), np.array(["1", "1", "1"])], ids=str)
def test_weights_that_no_method_has_are_not_read(weights: Any, tmp_path: Path) -> None:
    answer = optimal_method(L, 1, goal="convex", momentum=True)
    np.testing.assert_array_equal(SubspaceMethod.load(answer.save(tmp_path / "true")).D, answer.D)
    _assert_not_read(answer, {"weights": weights}, tmp_path)


def _assert_not_read(answer: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    kind = type(answer)
    path = answer.save(tmp_path / "r")
    meta, arrays = load_result(path, kind.__name__)
    save_result(path, kind.__name__, meta, {**arrays, **changes})
    with pytest.raises(ValueError, match="cannot be read as a "):
        kind.load(path)


def test_the_direction_of_a_large_result_is_a_vector_again(tmp_path: Path) -> None:
    result = optimal_stepsize(THIN, RandK(5, 2), structure=Direction(np.arange(1.0, 6.0)))
    again = StepsizeResult.load(result.save(tmp_path / "r"))
    np.testing.assert_array_equal(again.structure.W, result.D.diagonal())
    assert certify(again, THIN).feasible


def test_a_fault_of_the_library_is_not_called_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(meta: Any, arrays: Any) -> Any:
        return meta.nothing

    monkeypatch.setattr(StepsizeResult, "_of_contents", faulty)
    with pytest.raises(AttributeError, match="nothing"):
        StepsizeResult.load(RESULT.save(tmp_path / "r"))


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return dict(data)


def _csr(path: Path) -> None:
    sparse.save_npz(path, sparse.csr_array(L), compressed=False)


def _matrix(path: Path) -> Any:
    found = read_matrix("L", load_matrix(path))
    return found if isinstance(found, np.ndarray) else found.toarray()


ROWS = "+1 1:0.5 3:2\n-1 2:1 3:1e2 # c\n+1 3:-1\n"
KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "L.npy": (lambda path: np.save(path, L), _matrix),
    "dense.npz": (lambda path: np.savez_compressed(path, L=L, other=L), _matrix),
    "csr.npz": (_csr, _matrix),
    "coo.npz": (lambda path: sparse.save_npz(path, sparse.coo_array(L)), _matrix),
    "L.csv": (lambda path: np.savetxt(path, L, delimiter=","), _matrix),
    "dense.mtx": (lambda path: io.mmwrite(path, L), _matrix),
    "sparse.mtx": (lambda path: io.mmwrite(path, sparse.coo_array(L)), _matrix),
    "svmlight": (lambda path: path.write_text(ROWS), lambda path: load_dataset(str(path)).A.toarray()),
    "result.npz": (RESULT.save, lambda path: StepsizeResult.load(path).D),
    "clients.npz": (CLIENTS.save, lambda path: DistributedResult.load(path).D),
}


def _damaged(data: bytes, count: int) -> Iterator[bytes]:
    """Cut off at ``count`` places, a byte changed at as many others, a piece taken out or doubled."""
    rng = np.random.default_rng(0)
    for end in np.linspace(0, len(data) - 1, count).astype(int):
        yield data[:end]
    for _ in range(count):
        changed = bytearray(data)
        changed[rng.integers(len(data))] ^= int(rng.integers(1, 256))
        yield bytes(changed)
        low, high = np.sort(rng.integers(0, len(data), 2))
        yield data[:low] + data[high:]
        yield data[:high] + data[low:]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_a_value_error_in_python(name: str, tmp_path) -> None:
    """No other exception and no warning; of results only the true one comes back."""
    write, read = KINDS[name]
    path = tmp_path / name
    write(path)
    expected = read(path)
    refused = 0
    for data in _damaged(path.read_bytes(), 150):
        path.write_bytes(data)
        try:
            found = read(path)
        except ValueError as error:
            assert str(path) in str(error) or "L " in str(error)
            refused += 1
        else:
            if name in ("result.npz", "clients.npz"):
                np.testing.assert_array_equal(found, expected)
    assert refused > 250


def _csr_with(path: Path, **changes: Any) -> None:
    _csr(path)
    arrays = {**_arrays(path), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


MARKET = "%%MatrixMarket matrix"
# Text, or what writes the file, and what the error says.  A file may be named by mistake: its text is not quoted.
BROKEN: dict[str, tuple[str | Callable[[Path], Any], str]] = {
    "missing.npz": (lambda path: _csr_with(path, indices=None), "indices"),
    "outside.npz": (lambda path: _csr_with(path, indices=np.array([10**6] * 7)), "indices"),  # of another's memory
    "rows.mtx": (
        f"{MARKET} coordinate real general\n1000000000 1000000000 1\n1 1 1\n",
        "L has 1 entries in 1000000000",
    ),
    "cut.mtx": (f"{MARKET} array real symmetric\n2 2\n1\n0\n5E", "numbers with blanks between them"),  # crashes scipy
    "secret.mtx": ("secret\n", "numbers with blanks between them"),
    "secret.csv": ("1,2\n# names\nsecret,1\n", "it must hold numbers with commas between them"),
    "empty.csv": ("# a, b\n\n", "it holds no numbers"),
    "empty.npy": ("", "cannot be read as a matrix: it is empty"),
    "secret.npy": ("secret of a file", "was not written by numpy"),
    "secret.npz": ("secret of a file", "was not written by numpy"),
    "words.npy": (lambda path: np.save(path, np.array([["a"]])), "not real numbers"),
    "objects.npy": (lambda path: np.save(path, np.array([{}]), allow_pickle=True), "holds Python objects"),
    "folder.npz": (lambda path: path.mkdir(), "it is a folder; name a file"),
    "svm_large": (f"+1 1:1\n-1 {10**9}:2\n", "1000000000×1000000000"),
    "svm_nan": ("+1 1:1\n-1 2:nan\n", "a feature is NaN or infinite"),
    "svm_first": ("root:secret\n", "each line must be a label with pairs index:value of ascending indices"),
    "svm_feature": ("+1 1:1\n-1 2:secret\n", "a label with pairs index:value"),
    "svm_index": (f"+1 1:1\n-1 {10**20}:1\n", "a label with pairs index:value"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_a_value_error_that_does_not_quote_it(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    path = tmp_path / name
    path.write_text(content) if isinstance(content, str) else content(path)
    with pytest.raises(ValueError, match=message) as caught:
        _matrix(path) if path.suffix else load_dataset(str(path))
    assert "secret" not in "".join(traceback.format_exception(caught.value)).replace(str(path), "")


class TestTooLarge:
    """d = 100 000 takes 80 GB for each dense matrix; a process that may hold 4 GB must say so at once."""

    d = 100_000

    @pytest.fixture(autouse=True)
    def limit(self) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_AS)
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + 4 * 2**30, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_AS, before)

    @pytest.fixture
    def chain(self, tmp_path) -> str:
        """A path of coordinates, which no reduction takes apart."""
        beside = np.full(self.d - 1, 0.1)
        L = sparse.diags_array([np.full(self.d, 2.0), beside, beside], offsets=[0, 1, -1], format="csr")
        sparse.save_npz(tmp_path / "chain.npz", L)
        return str(tmp_path / "chain.npz")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["solve", "{L}", "--sketch", "gaussian:5"],
            ["solve", "{L}", "--sketch", "bernq:0.5@50000,50000"],
            ["solve", "{L}", "--sketch", "randk:5", "--structure", "scalar"],
            ["solve", "{L}", "--sketch", "randk:5", "--structure", "diagonal"],
            ["certify", "{L}", "{L}", "--sketch", "randk:5"],
        ],
    )
    def test_the_command_line(self, arguments, chain: str, capsys) -> None:
        assert main([chain if word == "{L}" else word for word in arguments]) == 2
        error = capsys.readouterr().err
        assert "dense 100000×100000" in error and error.count("\n") == 1

    def test_python(self) -> None:
        with pytest.raises(ValueError, match="GB of memory"):
            _ = LayerWise([RandK(self.d, 5), BernQ(0.5, 5)]).map
        stepsize = BlockStepsize([np.arange(self.d)], [np.ones(self.d)])
        large = replace(RESULT, stepsize=stepsize, certificate=replace(RESULT.certificate, d=self.d))
        with pytest.raises(ValueError, match="80 GB"):
            _ = large.D


@pytest.mark.parametrize("command", ["solve", "solve-distributed", "demo", "reproduce", "bench"])
@pytest.mark.parametrize("place", ["taken", "unwritable"])
def test_what_cannot_be_written_is_refused_before_solving(
    command: str, place: str, tmp_path, capsys, monkeypatch
) -> None:
    def started(*_args: object, **_options: object) -> None:
        pytest.fail("the work began")

    for work in (
        "cli.solve.optimal_stepsize",
        "cli.distributed.optimal_distributed_stepsize",
        "cli.demo.compare",
        "experiments.reproduce",
        "bench.run_benchmark",
    ):
        monkeypatch.setattr(f"stepsize_validation.{work}", started)
    np.save(tmp_path / "L.npy", L)
    name = "out.png" if command == "demo" else "out.npy"
    # Nothing can be written into /proc, by root neither; a file stands where a folder is wanted.
    out = Path("/proc") / name if place == "unwritable" else tmp_path / name
    if place == "taken":
        out.touch() if command in ("reproduce", "bench") else out.mkdir()
    option = "--figure" if command == "demo" else "--output"
    extra = {
        "solve": [str(tmp_path / "L.npy"), "--sketch", "randk:1"],
        "solve-distributed": ["--data", "breast_cancer", "--clients", "2", "--sketch", "randk:1"],
    }
    assert main([command, *extra.get(command, []), option, str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {option} {out}: ") and error.count("\n") == 1


@pytest.mark.parametrize("suffix", [".npz", ".json", ".npy", ".csv"])
def test_what_was_written_is_said(suffix: str, tmp_path, capsys) -> None:
    np.save(tmp_path / "L.npy", L)
    out = tmp_path / f"D{suffix}"
    command = ["solve", str(tmp_path / "L.npy"), "--sketch", "randk:1", "-o", str(out)]
    for words, said in ((["--json"], f"wrote {out}\n"), ([], f"wrote {out}, replacing the file that was there\n")):
        assert main([*command, *words]) == 0
        assert capsys.readouterr().err == said
    assert main([*command, "-q"]) == 0
    assert capsys.readouterr().err == ""


# ----------------------------------------------------------------
# what is handed over as L: numbers are read, other kinds of objects get an answer that names the remedy


SMALL = np.array([[2.0, 1.0], [1.0, 3.0]])
LABELS = ["slope", "offset"]
ESTIMATE = EstimatedSmoothness(SMALL, 1.5, "two Hessians")


def test_labels_of_a_frame_must_agree() -> None:
    frame = pd.DataFrame(SMALL, index=LABELS, columns=LABELS)
    np.testing.assert_array_equal(read_matrix("L", frame), SMALL)
    np.testing.assert_array_equal(read_matrix("L", pd.DataFrame(SMALL, columns=LABELS)), SMALL)
    with pytest.raises(ValueError, match="L must be"):
        read_matrix("L", frame.loc[LABELS[::-1]])
    np.testing.assert_array_equal(read_matrix("L", frame.loc[LABELS[::-1]].loc[LABELS]), SMALL)
    np.testing.assert_array_equal(read_matrix("L", frame.convert_dtypes()), SMALL)  # numpy makes objects of it


def test_what_rests_on_an_estimate_says_so(tmp_path: Path) -> None:
    result = optimal_stepsize(ESTIMATE, RandK(2, 1))
    proved = optimal_stepsize(1.5 * SMALL, RandK(2, 1))
    np.testing.assert_array_equal(result.D, proved.D)
    assert proved.certified and not result.certified and not ESTIMATE.certified
    assert "certified=False" not in repr(proved)
    assert "optimal for the estimate" in repr(result) and "estimate" not in repr(proved)
    for shown in (repr(result), result._repr_html_(), repr(compare(ESTIMATE, RandK(2, 1))), repr(ESTIMATE)):
        assert "certified=False" in shown
    assert "two Hessians, margin 1.5" in result.summary()["estimated"]
    loaded = StepsizeResult.load(result.save(tmp_path / "D"))
    assert loaded.estimated == result.estimated
    check = certify(result, ESTIMATE)
    assert check.feasible and check.estimated == result.estimated and "certified=False" in repr(check)
    assert certify(result, ESTIMATE.matrix).estimated == ""
    with pytest.raises(TypeError, match=r"pass L\.matrix"):
        to_cvxpy(ESTIMATE, RandK(2, 1))
    for margin in (0.0, 0.5, math.nextafter(1.0, 0.0), math.inf, math.nan):
        with pytest.raises(ValueError, match="margin"):
            EstimatedSmoothness(SMALL, margin, "two Hessians")
