"""Files: written whole or not at all, JSON without infinities, and broken files that end in one clear line."""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import io, sparse

from stepsize_opt import (
    BernQ,
    DistributedResult,
    LayerWise,
    RandK,
    StepsizeResult,
    certify,
    optimal_distributed_stepsize,
    optimal_stepsize,
)
from stepsize_opt.inputs.files import atomic_write, json_text
from stepsize_opt.inputs.matrices import read_matrix
from stepsize_opt.inputs.saved import load_result, save_result
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.root import main
from stepsize_validation.data import load_dataset

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

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["npz", "npy", "csv", "json"])
    def test_a_full_disk_leaves_the_old_file(self, tmp_path, kind: str) -> None:
        """A limit on the size of files fails a write halfway, as a full disk does."""
        matrix, out = tmp_path / "L.npy", tmp_path / f"D.{kind}"
        np.save(matrix, np.diag(np.linspace(1.0, 2.0, 60)) + 0.01)
        out.write_bytes(b"old")
        command = [
            sys.executable,
            "-m",
            "stepsize_validation.cli",
            "solve",
            str(matrix),
            "--sketch",
            "randk:9",
            "-o",
            str(out),
        ]

        def full() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that the write fails instead of ending the process
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=full)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert out.read_bytes() == b"old"
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted([out.name, "L.npy"])


def test_json_has_no_infinities() -> None:
    value = {"a": [math.inf, -math.inf, math.nan, np.float64("inf"), 1.5], "b": np.arange(2), "c": np.int64(3), 4: None}
    text = json_text(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": ["inf", "-inf", "nan", "inf", 1.5],
        "b": [0, 1],
        "c": 3,
        "4": None,
    }


def test_an_infinite_bound_is_printed_saved_and_read(tmp_path, capsys) -> None:
    """One step leaves no bound: JSON of the command and the file of the result say so without Infinity."""
    unproved = replace(RESULT.certificate, upper_bound=math.inf)
    stats = replace(RESULT.solver_stats, extra_stats={"history": [[-math.inf, 1.0]]})
    result = replace(RESULT, certificate=unproved, status="optimal_inaccurate", solver_stats=stats)
    path = result.save(tmp_path / "r")
    with np.load(path) as data:
        meta = json.loads(str(data["meta"]), parse_constant=pytest.fail)
    assert meta["certificate"]["upper_bound"] == "inf"
    again = StepsizeResult.load(path)
    assert again.certificate == unproved and again.solver_stats == stats
    assert again.gap == math.inf
    np.save(tmp_path / "L.npy", L)
    np.save(tmp_path / "D.npy", 9.0 * RESULT.D)
    assert main(["certify", str(tmp_path / "D.npy"), str(tmp_path / "L.npy"), "--sketch", "randk:1", "--json"]) == 1
    report = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert float(report["gap"]) == math.inf


class TestResults:
    def test_names_agree(self, tmp_path) -> None:
        for result, cls in ((RESULT, StepsizeResult), (CLIENTS, DistributedResult)):
            for name in ("x", "y.npz", "z.NPZ", "d = 0.5"):
                path = result.save(tmp_path / name)
                assert path.suffix.lower() == ".npz"
                np.testing.assert_array_equal(cls.load(tmp_path / name).D, result.D)
                np.testing.assert_array_equal(cls.load(str(path)).D, result.D)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["d = 0.5.npz", "x.npz", "y.npz", "z.NPZ"]
        with pytest.raises(FileNotFoundError, match=r"no file .*missing\.npz"):
            StepsizeResult.load(tmp_path / "missing")

    def test_a_distributed_result_comes_back(self, tmp_path) -> None:
        plain = optimal_distributed_stepsize(
            [L, 2.0 * L], RandK(3, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.5, iterations=10**6
        )
        for result in (CLIENTS, plain):
            again = DistributedResult.load(result.save(tmp_path / "r"))
            assert json_text(again.summary()) == json_text(result.summary())
            assert (again.certificate, again.targets, again.K) == (result.certificate, result.targets, result.K)
            np.testing.assert_array_equal(again.D, result.D)

    def test_kinds_are_not_mixed_up(self, tmp_path) -> None:
        with pytest.raises(ValueError, match="it holds a DistributedResult, not a StepsizeResult"):
            StepsizeResult.load(CLIENTS.save(tmp_path / "c"))
        with pytest.raises(ValueError, match="it holds a StepsizeResult, not a DistributedResult"):
            DistributedResult.load(RESULT.save(tmp_path / "r"))

    @pytest.mark.parametrize("name", ["D_0", "Z_0", "indices_0", "D", "meta"])
    def test_a_changed_part_is_noticed(self, tmp_path, name: str) -> None:
        """A larger D under the old certificate, another sketch's name: the digest ties them together."""
        path = RESULT.save(tmp_path / "r")
        arrays = _arrays(path)
        if name == "meta":
            arrays[name] = np.array(str(arrays[name]).replace("randk:1", "randk:2"))
        else:
            arrays[name] = (2 * arrays[name]).astype(arrays[name].dtype)
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match="it was changed after it was written"):
            StepsizeResult.load(path)

    @pytest.mark.parametrize(("name", "value"), [("upper_bound", "inf"), ("upper_bound", "nan"), ("feasible", False)])
    def test_no_file_has_a_status_that_its_certificate_contradicts(self, tmp_path, name: str, value: Any) -> None:
        path = RESULT.save(tmp_path / "r")
        meta, arrays = load_result(path, "StepsizeResult")
        meta["certificate"][name] = value
        save_result(path, "StepsizeResult", meta, arrays)
        with pytest.raises(ValueError, match=r"status optimal with a certified gap|contradict each other"):
            StepsizeResult.load(path)

    def test_the_certificate_of_a_loaded_result_can_be_proved_again(self, tmp_path) -> None:
        again = StepsizeResult.load(RESULT.save(tmp_path / "r"))
        check = certify(again.D, L, RandK(3, 1), algorithm=again.algorithm, dual=again.dual)
        assert check.feasible
        assert check.gap <= again.tol


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return dict(data)


def _csr(path: Path) -> None:
    sparse.save_npz(path, sparse.csr_array(L), compressed=False)


def _svmlight(path: Path) -> None:
    path.write_text("+1 1:0.5 3:2\n-1 2:1 3:1e2 # c\n+1 3:-1\n")


def _matrix(path: Path) -> Any:
    found = read_matrix("L", load_matrix(path))
    return found if isinstance(found, np.ndarray) else found.toarray()


Reader = Callable[[Path], Any]
KINDS: dict[str, tuple[Callable[[Path], Any], Reader]] = {
    "L.npy": (lambda path: np.save(path, L), _matrix),
    "dense.npz": (lambda path: np.savez_compressed(path, L=L, other=L), _matrix),
    "csr.npz": (_csr, _matrix),
    "coo.npz": (lambda path: sparse.save_npz(path, sparse.coo_array(L)), _matrix),
    "L.csv": (lambda path: np.savetxt(path, L, delimiter=","), _matrix),
    "dense.mtx": (lambda path: io.mmwrite(path, L), _matrix),
    "sparse.mtx": (lambda path: io.mmwrite(path, sparse.coo_array(L)), _matrix),
    "svmlight": (_svmlight, lambda path: load_dataset(str(path)).A.toarray()),
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


def _without_indices(path: Path) -> None:
    _csr(path)
    arrays = _arrays(path)
    del arrays["indices"]
    np.savez(path, **arrays)


def _outside(path: Path) -> None:
    _csr(path)
    arrays = _arrays(path)
    arrays["indices"][0] = 10**6  # read unchecked, this is memory that belongs to something else
    np.savez(path, **arrays)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "indices.npz": (_without_indices, "indices"),
    "outside.npz": (_outside, "indices"),
    "rows.mtx": (
        lambda path: path.write_text("%%MatrixMarket matrix coordinate real general\n1000000000 1000000000 1\n1 1 1\n"),
        "L has 1 entries in 1000000000 rows",
    ),
    "cut.mtx": (
        lambda path: path.write_text("%%MatrixMarket matrix array real symmetric\n2 2\n1\n0\n5E"),  # crashes scipy
        "it must hold numbers with blanks between them",
    ),
    "svm9": (lambda path: path.write_text(f"+1 1:1\n-1 {10**9}:2\n"), "1000000000×1000000000"),
    "svm13": (lambda path: path.write_text(f"+1 1:1\n-1 {10**13}:2\n"), "cannot be read as an svmlight file"),
    "svm_nan": (lambda path: path.write_text("+1 1:1\n-1 2:nan\n"), "a feature is NaN or infinite"),
    "empty.csv": (lambda path: path.write_text("# a, b\n\n"), "it holds no numbers"),
    "empty.npy": (lambda path: path.touch(), "cannot be read as a matrix: it is empty"),
    "folder.npz": (lambda path: path.mkdir(), "it is a folder; name a file"),
    "words.npy": (lambda path: np.save(path, np.array([["a"]])), "not real numbers"),
    "objects.npy": (lambda path: np.save(path, np.array([{}]), allow_pickle=True), "holds Python objects"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_a_value_error(name: str, tmp_path: Path) -> None:
    write, message = BROKEN[name]
    path = tmp_path / name
    write(path)
    with pytest.raises(ValueError, match=message):
        _matrix(path) if path.suffix else load_dataset(str(path))


# Files that were named by mistake, each with what its error says; the words themselves may be a secret.
MISTAKEN: dict[str, tuple[str, str]] = {
    "first": ("root:secret\n", "line 1 is not a label with pairs index:value of ascending indices behind it"),
    "feature": ("+1 1:1\n-1 2:secret\n", "line 2 is not a label with pairs index:value"),
    "index": ("+1 1:1\n-1 99999999999999999999:1\n", "line 2 is not a label with pairs index:value"),
    "secret.csv": ("1,2\n# names\nsecret,1\n", "it must hold numbers with commas between them"),
    "secret.npy": ("secret of a file", "was not written by numpy"),
    "secret.npz": ("secret of a file", "was not written by numpy"),
    "secret.mtx": ("secret\n", "it must hold numbers with blanks between them"),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_no_error_quotes_the_text_of_a_file(name: str, tmp_path: Path) -> None:
    text, message = MISTAKEN[name]
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_matrix(path) if path.suffix else load_dataset(str(path))
    shown = "".join(traceback.format_exception(caught.value)).replace(str(path), "")
    assert "secret" not in shown and "9999" not in shown


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
    def chain(self, tmp_path) -> Path:
        """A path of coordinates, which no reduction takes apart."""
        path = tmp_path / "chain.npz"
        beside = np.full(self.d - 1, 0.1)
        sparse.save_npz(
            path, sparse.diags_array([np.full(self.d, 2.0), beside, beside], offsets=[0, 1, -1], format="csr")
        )
        return path

    @pytest.mark.parametrize(
        "arguments",
        [
            ["solve", "{L}", "--sketch", "gaussian:5"],
            ["solve", "{L}", "--sketch", "bernq:0.5@50000,50000"],
            ["solve", "{L}", "--sketch", "randk:5", "-o", "{out}"],
            ["certify", "{L}", "{L}", "--sketch", "randk:5"],
            ["compare", "{L}", "--sketch", "randk:5"],
            ["table", "{L}", "-k", "5"],
        ],
    )
    def test_the_command_line(self, arguments, chain: Path, tmp_path, capsys) -> None:
        names = {"{L}": str(chain), "{out}": str(tmp_path / "D.npy")}
        assert main([names.get(a, a) for a in arguments]) == 2
        error = capsys.readouterr().err
        assert "dense 100000×100000" in error
        assert error.count("\n") == 1
        assert [p.name for p in tmp_path.iterdir()] == ["chain.npz"]

    def test_a_full_matrix_is_refused_with_what_can_be_had(self, chain: Path, capsys) -> None:
        assert main(["solve", str(chain), "--sketch", "randk:5"]) == 2
        error = capsys.readouterr().err
        assert "structure='full'" in error and "'scalar'" in error and error.count("\n") == 1

    @pytest.mark.parametrize(("structure", "code"), [("scalar", 0), ("diagonal", 1)])
    def test_a_thin_one_is_found_without_a_dense_matrix(self, structure, code, chain: Path, capsys) -> None:
        """For the diagonal one L ⪰ 0 is not proved, so that there is no bound: feasible, and not called optimal."""
        assert main(["solve", str(chain), "--sketch", "randk:5", "--structure", structure]) == code
        assert "proved, margin" in capsys.readouterr().out

    def test_python(self) -> None:
        with pytest.raises(ValueError, match="GB of memory"):
            _ = LayerWise([RandK(self.d, 5), BernQ(0.5, 5)]).map
        n = self.d
        block = replace(RESULT.blocks[0], indices=np.arange(n), D=np.ones(n), Z=np.ones(n))
        large = replace(RESULT, blocks=(block,), certificate=replace(RESULT.certificate, d=n))
        with pytest.raises(ValueError, match="80 GB, but there are"):
            _ = large.D


class TestOutputs:
    @pytest.fixture
    def matrix(self, tmp_path) -> str:
        path = tmp_path / "L.npy"
        np.save(path, L)
        return str(path)

    @pytest.mark.parametrize("command", ["solve", "solve-distributed", "demo", "reproduce", "bench"])
    @pytest.mark.parametrize("place", ["folder", "unwritable"])
    def test_what_cannot_be_written_is_refused_before_solving(
        self, command: str, place: str, matrix: str, tmp_path, capsys, monkeypatch
    ) -> None:
        def started(*_args: object, **_options: object) -> None:
            pytest.fail("the work began")

        for work in (
            "stepsize_validation.cli.solve.optimal_stepsize",
            "stepsize_validation.cli.distributed.optimal_distributed_stepsize",
            "stepsize_validation.cli.demo.compare",
            "stepsize_validation.experiments.reproduce",
            "stepsize_validation.bench.run_benchmark",
        ):
            monkeypatch.setattr(work, started)
        name = "out.png" if command == "demo" else "out.npy"
        folders = command in ("reproduce", "bench")
        # Nothing can be written into /proc, by root neither; a file stands where a folder is wanted.
        out = Path("/proc") / name if place == "unwritable" else tmp_path / name
        if place == "folder":
            out.touch() if folders else out.mkdir()
        option = "--figure" if command == "demo" else "--output"
        extra = {
            "solve": [matrix, "--sketch", "randk:1"],
            "solve-distributed": ["--data", "breast_cancer", "--clients", "2", "--sketch", "randk:1"],
        }
        assert main([command, *extra.get(command, []), option, str(out)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {option} {out}: ")
        assert error.count("\n") == 1

    @pytest.mark.parametrize("suffix", [".npz", ".json", ".npy", ".csv"])
    def test_what_was_written_is_said(self, matrix: str, suffix: str, tmp_path, capsys) -> None:
        out = tmp_path / f"D{suffix}"
        command = ["solve", matrix, "--sketch", "randk:1", "-o", str(out)]
        assert main([*command, "--json"]) == 0
        captured = capsys.readouterr()
        json.loads(captured.out)
        assert captured.err == f"wrote {out}\n"
        assert main(command) == 0
        assert capsys.readouterr().err == f"wrote {out}, replacing the file that was there\n"
        assert main([*command, "-q"]) == 0
        assert capsys.readouterr().err == ""

    def test_clients(self, tmp_path, capsys) -> None:
        out = tmp_path / "D.npz"
        command = ["solve-distributed", "--data", "breast_cancer", "--clients", "2", "--sketch", "randk:1"]
        command += ["--structure", "diagonal", "--initial-gap", "0.6", "--delta-inf", "0.01"]
        assert main([*command, "--json", "-o", str(out)]) == 0
        captured = capsys.readouterr()
        assert captured.err == f"wrote {out}\n"
        assert DistributedResult.load(out).summary() == json.loads(captured.out)
        assert main([*command, "--compare", "-o", str(out)]) == 2
        assert "does not go with --output, --structure" in capsys.readouterr().err
