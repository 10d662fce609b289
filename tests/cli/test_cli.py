"""The commands: options, output, files, exit codes, and as processes Ctrl-C, closed pipes and the terminal."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.clients import random_clients
from shared.licences import without_mosek_licence
from shared.reference_problems import random_smoothness
from stepsize_opt import (
    BlockDiagonal,
    DiagonalSketch,
    Direction,
    Identity,
    RandK,
    optimal_distributed_stepsize,
    optimal_stepsize,
)
from stepsize_opt.results import StepsizeResult
from stepsize_solvers.numerics.progress import Progress
from stepsize_solvers.programs import Status
from stepsize_solvers.registry import Availability
from stepsize_validation.cli.root import main

L = random_smoothness(4, 20.0, 0)
M = 0.5 * L
SKETCH = ["--sketch", "randk:2"]
TARGETS: dict[str, Any] = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.2}
TARGET = ["--epsilon2", "1e-2", "--initial-gap", "1", "--delta-inf", "0.2"]
CLIENTS = ["solve-distributed", "--data", "breast_cancer", "--clients", "2", *SKETCH]
DISTRIBUTED = ["solve-distributed", "--sketch", "randk:1"]
RIDGE = ["--data", "breast_cancer", "--penalty", "ridge", "--reg", "0.1", "--sketch", "randk:8"]
COMPARE = ["compare", "{L}", *SKETCH]
PLAN = ["--epsilon2", "1e-2", "--initial-gap", "1"]

COMMAND = [sys.executable, "-m", "stepsize_validation.cli"]

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    """The name of the file of L."""
    np.save(tmp_path / "L.npy", L)
    return str(tmp_path / "L.npy")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The matrices of three clients in different formats."""
    first, second, third = random_clients(4, 3, 1)
    np.save(tmp_path / "a.npy", first)
    np.savetxt(tmp_path / "b.csv", second, delimiter=",", fmt="%.17g")
    sparse.save_npz(tmp_path / "c.npz", sparse.csr_array(third))
    return [str(tmp_path / name) for name in ("a.npy", "b.csv", "c.npz")]


def answer(capsys: Captured, *words: str, code: int = 0) -> Any:
    """Run a command with --json; return what it prints."""
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


# ---------------------------------------------------------------- solve

# Options, and the same call of the library.
GOALS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["--structure", "block:2,2"], {"structure": BlockDiagonal((2, 2))}),
    (["--structure", "scalar"], {"structure": "scalar"}),
    (["--structure", "diagonal"], {"structure": "diagonal"}),
    (["--algorithm", "DET-cgd2"], {"algorithm": "det-CGD2"}),
    (["--goal", "descent"], {"goal": "descent"}),
    (["--goal", "euclidean"], {"goal": "euclidean"}),
    (["--goal", "linear", "--strong-convexity", "0.001"], {"goal": "linear", "strong_convexity": 0.001}),
    (["--goal", "linear", "--strong-convexity", "M.npy"], {"goal": "linear", "strong_convexity": M}),
]


@pytest.mark.parametrize(("options", "call"), GOALS, ids=[" ".join(options) for options, _ in GOALS])
def test_solve_is_the_call_of_the_library_and_certify_judges_its_file(
    options: list[str],
    call: dict[str, Any],
    matrix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("M.npy", M)
    result = optimal_stepsize(L, RandK(4, 2), **call)
    summary = answer(capsys, "solve", matrix, *SKETCH, *options, "-o", "D.npz")
    assert (summary["status"], summary["rate"]) == ("optimal", result.rate)
    assert (summary["algorithm"], summary["goal"]) == (result.algorithm, result.goal)
    assert summary["certificate"]["feasible"]
    # The file names sketch, method, structure and goal; M is not in it.
    bound = options[-2:] if "--strong-convexity" in options else []
    for solve in ([], ["--solve"]):
        assert answer(capsys, "certify", "D.npz", matrix, *bound, *solve)["gap"] <= 1e-6
    if bound:
        assert main(["certify", "D.npz", matrix]) == 2
        assert "--strong-convexity" in capsys.readouterr().err
    # Options overrule the file: for another goal this D is infeasible or not the best.
    if options:
        other = ["--structure", "full", "--algorithm", "det-CGD1", "--goal", "paper", "--solve"]
        assert main(["certify", "D.npz", matrix, *other, "-q"]) == 1


@pytest.mark.parametrize("solver", ["native", "clarabel"])
def test_verbose_shows_the_solver_and_leaves_the_output_alone(
    matrix: str, solver: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["solve", matrix, *SKETCH, "--solver", solver, "-v", "--json"]) == 0
    shown = capfd.readouterr()
    assert "iter" in shown.err.lower()
    assert len(shown.err.splitlines()) > 3  # a line for each iteration
    # The log ends at the value of the result, in the user's coordinates.
    log_det = json.loads(shown.out)["certificate"]["log_det"]
    assert float(shown.err.split()[-2]) == pytest.approx(log_det / 4, abs=1e-9)
    if solver == "native":
        assert float(shown.err.splitlines()[-2].split()[1]) == pytest.approx(log_det / 4, abs=1e-6)
        assert main([*CLIENTS, "--structure", "diagonal", *TARGET, "-v", "--json"]) == 0
        shown = capfd.readouterr()
        assert f"proved K = {json.loads(shown.out)['K']}, gap" in shown.err.splitlines()[-1]


READERS = {
    "npz": lambda path: StepsizeResult.load(path).D,
    "json": lambda path: np.array(json.loads(path.read_text())["D"]),
    "npy": np.load,
    "csv": lambda path: np.loadtxt(path, delimiter=","),
}


def test_output_files_hold_the_feasible_matrix(matrix: str, tmp_path: Path, capsys: Captured) -> None:
    for name, read in READERS.items():
        target = tmp_path / f"D.{name}"
        assert main(["solve", matrix, *SKETCH, "-q", "-o", str(target)]) == 0
        np.testing.assert_array_equal(read(target), optimal_stepsize(L, RandK(4, 2)).D)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "device.npz").symlink_to(pipe)
    assert main(["solve", matrix, *SKETCH, "-o", str(tmp_path / "device.npz"), "-q"]) == 2
    assert "is not a regular file" in capsys.readouterr().err and pipe.is_fifo()


@pytest.mark.parametrize("text", ["\ufeff2,0\n0,1\n", "x,y\n2,0\n0,1\n", "0,1\n2,0\n0,1\n"])
def test_what_spreadsheets_add_is_skipped(text: str, tmp_path: Path, capsys: Captured) -> None:
    """pandas writes the names of columns, or their numbers from 0, above the matrix."""
    (tmp_path / "L.csv").write_text(text, encoding="utf-8")
    summary = answer(capsys, "solve", str(tmp_path / "L.csv"), "--sketch", "randk:1")
    assert summary["rate"] == optimal_stepsize(np.diag([2.0, 1.0]), RandK(2, 1)).rate


def test_solve_tells_the_rounds_that_it_guarantees(matrix: str, capsys: Captured) -> None:
    given = ["--epsilon2", "1e-4", "--initial-gap", "1"]
    summary = answer(capsys, "solve", matrix, *SKETCH, *given)
    rounds = optimal_stepsize(L, RandK(4, 2)).iterations(epsilon2=1e-4, initial_gap=1.0)
    assert (summary["rounds"], summary["floats"]) == (rounds, 2.0 * rounds)
    assert main(["solve", matrix, *SKETCH, *given, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["solve", matrix, *SKETCH, *given]) == 0
    shown = capsys.readouterr().out
    assert f"{rounds:,} rounds".replace(",", " ") in shown
    assert "not saved" in shown


COMMANDS = ["", *"solve certify compare plan solve-distributed check reproduce bench demo doctor".split()]


@pytest.mark.parametrize("words", [[*command.split(), "--help"] for command in COMMANDS] + [["--version"]])
def test_help_has_examples_and_80_columns(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main(words)
    shown = capsys.readouterr().out
    assert stop.value.code == 0 and max(map(len, shown.splitlines())) <= 80
    assert shown.startswith("stepsize-opt 1.") if words == ["--version"] else "examples:" in shown


# ---------------------------------------------------------------- exit codes


# One mistake for each kind of check that the command line makes itself; the library's checks have their own tests.
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["solve", "missing.npy", *SKETCH], "missing.npy"),
        (["solve", "{bad}", *SKETCH], "bad.csv"),
        (["solve", "--data", "nothing", *SKETCH], "nothing"),
        (["solve", *SKETCH], "--data"),
        (["solve", "L.npy", "--reg", "0.1", *SKETCH], "--reg"),
        (["solve", "{L}", *SKETCH, "--goal", "linear"], "--strong-convexity"),
        (["solve", "{L}", *SKETCH, "--epsilon2", "1"], "--initial-gap"),
        (["solve", "{L}", *SKETCH, "--momentum"], "--goal"),
        (["solve", "{L}", *SKETCH, "--goal", "linear", "--strong-convexity", "0,05"], "--strong-convexity"),
        (["solve", "{L}", *SKETCH, "--structure", "block:a"], "--structure"),
        (["solve", "{L}", *SKETCH, "--algorithm", "det-CGD3"], "--algorithm"),
        (["solve", "{L}", *SKETCH, "-o", "D.txt"], "--output"),
        (["solve", "{L}", *SKETCH, "--tol", "-1"], "--tol"),
        (["solve", "{L}", *SKETCH, "--jobs", "0"], "--jobs"),
        ([*CLIENTS, "--delta-inf", "-1e-9"], "--delta-inf"),
        ([*DISTRIBUTED, "{L}", "{L}", *["--sketch", "randk:1"] * 2, *TARGET], "sketch"),
        ([*DISTRIBUTED, "{L}", *TARGET[:4]], "--delta-inf"),
        ([*DISTRIBUTED, "{L}", "--clients", "2", *TARGET], "--clients"),
        ([*DISTRIBUTED, "{L}", "--data", "digits"], "--data"),
        (DISTRIBUTED, "--data"),
        ([*DISTRIBUTED, "--data", "digits"], "--clients"),
        ([*DISTRIBUTED, "{L}", *TARGET, "-o", "D.txt"], "--output D.txt"),
        (["certify", "{D}", "{L}"], "--sketch"),
        (["compare", *RIDGE, "--goal", "linear", "--strong-convexity", "0.2"], "--strong-convexity"),
        (["plan", "{L}", "--initial-gap", "1"], "--epsilon2"),
        (["plan", "{L}", "--epsilon2", "1"], "--initial-gap"),
        (["plan", "{L}", *PLAN, "--clients", "2"], "--clients"),
        (["plan", "{L}", *PLAN, "--seed", "3"], "--seed"),
        (["plan", "{L}", *PLAN, "--figure", "plan.txt"], "--figure"),
        (["demo", "--seed", "-1"], "--seed"),
        (["bench", "--sizes", "0"], "--sizes"),
        (["bench", "--solvers", "cvxopt"], "--solvers"),
        (["bench", "--solvers", "simplex"], "simplex"),
        (["bench", "--solvers", "clarable"], "(did you mean 'clarabel'?)"),
        (["bench", "--memory-limit", "lots"], "--memory-limit"),
        (["bench", "--report", "-o", "nowhere"], "nowhere"),
        (["frobnicate"], "stepsize-opt --help"),
        (["slove", "{L}", *SKETCH], "(did you mean 'solve'?)"),
        (["solve", "{L}", *SKETCH, "--goal", "descend"], "(did you mean 'descent'?)"),
        (["solve", "{L}", *SKETCH, "--structure", "diag"], "(did you mean 'diagonal'?)"),
        (["solve", "{index}", *SKETCH], "index=False"),
        ([], "--help"),
    ],
)
def test_mistakes_get_one_line_and_no_traceback(
    arguments: list[str], named: str, matrix: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n")
    (tmp_path / "index.csv").write_text(",0,1\n0,2.0,0.0\n1,0.0,1.0\n")
    np.save(tmp_path / "D.npy", np.eye(4))
    files = {"{L}": matrix, **{f"{{{name}}}": str(tmp_path / f"{name}.csv") for name in ("bad", "index")}}
    files["{D}"] = str(tmp_path / "D.npy")
    assert main([files.get(word, word) for word in arguments]) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_solver_that_cannot_run(
    matrix: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_mosek_licence(monkeypatch, tmp_path)
    for command in (["solve", matrix, *SKETCH, "--solver", "mosek"], ["bench", "--solvers", "mosek,scs"]):
        assert main(command) == 3
        assert "no licence" in capsys.readouterr().err


# ---------------------------------------------------------------- certify


def test_certify_the_optimum_and_its_double(matrix: str, tmp_path: Path, capsys: Captured) -> None:
    saved = str(tmp_path / "D.npy")
    D = optimal_stepsize(L, RandK(4, 2)).D
    np.save(saved, D)
    for solve in [], ["--solve"]:
        assert main(["certify", saved, matrix, *SKETCH, *solve]) == 0
        assert "yes, proved" in capsys.readouterr().out
    # A feasible D that is not the best: its gap counts after a solve only.
    np.save(saved, 0.5 * D)
    assert main(["certify", saved, matrix, *SKETCH, "-q"]) == 0
    assert main(["certify", saved, matrix, *SKETCH, "--solve", "-q"]) == 1
    np.save(saved, 2 * D)
    report = answer(capsys, "certify", saved, matrix, *SKETCH, code=1)
    assert not report["feasible"] and report["gap"] == "inf"
    assert report["largest_scale"] == pytest.approx(0.5, abs=1e-6)

    # Only a D that is infeasible for certain is answered with no; on the boundary it is not proved.
    np.save(saved, -np.eye(4))
    assert main(["certify", saved, matrix, *SKETCH]) == 1
    assert "D is not positive definite" in capsys.readouterr().out
    np.save(matrix, np.diag([2.0, 4.0, 4.0, 4.0]))
    for first, said in ((0.5, "not proved (margin"), (0.6, "no (margin")):
        np.save(saved, np.diag([first, 0.25, 0.25, 0.25]))
        assert main(["certify", saved, matrix, "--sketch", "identity"]) == 1
        assert said in capsys.readouterr().out
    # A file has a direction, and a sketch without a text form.
    sketch = DiagonalSketch([[2.0, 0.0, 2.0, 0.0], [0.0, 2.0, 0.0, 2.0]], [0.5, 0.5])
    np.save(matrix, L)
    path = str(optimal_stepsize(L, sketch, structure=Direction(L)).save(tmp_path / "W.npz"))
    assert main(["certify", path, matrix, "-q"]) == 0
    assert main(["certify", path, matrix, "--structure", "full", "--solve", "-q"]) == 1
    # An answer above the tolerance has its own exit code.
    assert main(["solve", matrix, *SKETCH, "--tol", "1e-17"]) == 1
    assert "optimal_inaccurate" in capsys.readouterr().out


# ---------------------------------------------------------------- the other commands


def test_compare_and_data_sets(matrix: str, capsys: Captured) -> None:
    assert len(answer(capsys, "compare", matrix, *SKETCH)) == 7
    left_out, given = (
        answer(capsys, "compare", *RIDGE, "--goal", "linear", *M) for M in ([], ["--strong-convexity", "0.1"])
    )
    assert [row["rate"] for row in given] == [row["rate"] for row in left_out]
    summary = answer(capsys, "solve", "--data", "breast_cancer", "--reg", "0.1", "--sketch", "randk:25%")
    assert (summary["d"], summary["sketch"]) == (30, "randk:8")


def test_plan(tmp_path: Path, capsys: Captured) -> None:
    matrix, figure = str(tmp_path / "L.npy"), tmp_path / "plan.png"
    np.save(matrix, np.array([[2.0, 1.0], [1.0, 3.0]]))
    assert main(["plan", matrix, "--budget", "1", *PLAN, "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "subspace" in out and "895" in out and "\n! GD" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
    plan = answer(capsys, "plan", matrix, "--goal", "descent,euclidean", *PLAN)
    assert [row["goal"] for row in plan["rows"] if row["best"]] == ["descent", "euclidean"]
    assert set(plan["limit_rounds"]) == {"descent", "euclidean"}
    assert main(["plan", matrix, "--total", "5", *PLAN]) == 1
    assert "no method stays within the budget" in capsys.readouterr().out


def test_doctor(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSIZE_OPT_DATA", "nowhere")
    assert main(["solve", "--data", "a1a", *SKETCH]) == 2
    assert "STEPSIZE_OPT_DATA" in capsys.readouterr().err
    report = answer(capsys, "doctor")
    assert {"name": "native", "available": True, "reason": None} in report["solvers"]
    assert report["packages"]["numpy"] == np.__version__ and report["blas"]
    missing = Availability("mosek", "not installed: try something")
    monkeypatch.setattr("stepsize_validation.cli.doctor.available_solvers", lambda: (missing,))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "nowhere does not exist" in shown and "try something" in shown


def test_demo(tmp_path: Path, capsys: Captured) -> None:
    figure = tmp_path / "demo.png"
    assert main(["demo", "--iterations", "250", "--seeds", "4", "--figure", str(figure)]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    report = answer(capsys, "demo", "--iterations", "250", "--seeds", "4")
    floats = {name: row["floats_to_1e-2"] for row in report["rows"] for name in row["names"]}
    assert f"f − f* is below 1e-2 after {floats['optimal D, descent']:.0f} floats" in text
    assert f"γI needs {floats['γ I']:.0f} (" in text
    assert "Proved: no D of det-CGD1 has a better guarantee" in text
    assert f"γI up to {report['ahead_until']['γ I']:.0f} floats" in text
    # Equal matrices are one row, and run once: the L of this data set has a constant diagonal.
    assert [row["names"] for row in report["rows"] if "γ I" in row["names"]] == [["γ I", "γ diag⁻¹(L)"]]
    assert sum("γ I = γ diag⁻¹(L)" in line for line in lines) == 2 and len(report["rows"]) == 6
    main(["demo", "--iterations", "50", "--seeds", "2"])
    short = " ".join(capsys.readouterr().out.split())
    assert short.startswith("After 150 floats f − f* is") and "γI to the end" in short
    for row in report["rows"]:
        assert ("theorem_1" in row) == ("optimal D of (3)" in row["names"])
        assert all(row[name]["verdict"] != "violated" for name in ("theorem_1", "descent_metric") if name in row)
        assert row["final_gap"] > 0.0


# ---------------------------------------------------------------- check


def test_check_prints_every_claim_and_fails_where_one_is_false(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    words = ["check", "--sketch", "randk:2", "--size", "3", "--examples"]
    assert main([*words, "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("holds") for line in lines)
    assert sum("Proposition 1" in line and "(3 pairs of D)" in line for line in lines) == 3
    monkeypatch.setattr(RandK, "expected_nonzeros", property(lambda self: 0.5))
    assert main([*words, "1"]) == 1
    assert "FALSE  floats sent per round" in capsys.readouterr().out


# ----------------------------------------------------------------
# the command ``solve-distributed``: clients from matrix files and from a data set, sketches, exit codes, errors


SHARED = {"algorithm": "det-CGD2", "seeds": "shared", "goal": "descent"}


@pytest.mark.parametrize(
    ("texts", "options"),
    [(["randk:1"], {}), (["randk:1"], SHARED), (["randk:1", "randk:2", "identity"], {"structure": "diagonal"})],
    ids=["one sketch", "shared seeds", "sketches"],
)
def test_matrix_files_give_the_answer_of_the_library(
    texts: list[str], options: dict[str, Any], files: list[str], capsys: Captured
) -> None:
    sketches = [word for text in texts for word in ("--sketch", text)]
    choice = [word for name, value in options.items() for word in (f"--{name}", value)]
    summary = answer(capsys, "solve-distributed", *files, *sketches, *choice, *TARGET)
    laws = [RandK(4, 1)] * 3 if len(texts) == 1 else [RandK(4, 1), RandK(4, 2), Identity(4)]
    expected = optimal_distributed_stepsize(random_clients(4, 3, 1), laws, **TARGETS, **options)
    assert summary["clients"] == 3 and summary["K"] == expected.K and summary["rate"] == expected.rate
    assert all(summary[name] == value for name, value in options.items())
    rows = answer(capsys, "solve-distributed", *files, *sketches, *TARGET, "--compare")
    assert any(row["seeds"] == "shared" for row in rows) is (len(texts) == 1)


def test_a_data_set_shared_by_clients(capsys: Captured, tmp_path: Path) -> None:
    quick, out = [*CLIENTS, "--structure", "scalar", "--initial-gap", "0.5", "--delta-inf", "0.1"], tmp_path / "D.csv"
    summary = answer(capsys, *quick, "-o", str(out))
    assert summary["clients"] == 2
    np.testing.assert_allclose(np.linalg.slogdet(np.loadtxt(out, delimiter=","))[1] / 30, math.log(summary["rate"]))
    assert main([*quick, "--iterations", "1"]) == 1
    assert "infeasible" in capsys.readouterr().out
    assert main([*quick, "-q"]) == 0 and capsys.readouterr().out == ""


# ----------------------------------------------------------------
# the command as a process: Ctrl-C at any moment, pipes that close, progress on a terminal of 80 columns


def process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["plan", "{L}", *PLAN], ["certify", "{D}", "{L}", *SKETCH, "--solve"], COMPARE])
def test_interrupt_of_one_solve_of_several(
    words: list[str], matrix: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A solver returns its best D so far; a command that makes several such calls ends."""
    np.save(tmp_path / "D.npy", 1e-3 * np.eye(4))
    run = Progress.run
    monkeypatch.setattr(Progress, "run", lambda self, method: (run(self, method), Status.INTERRUPTED)[1])
    command = [word.format(L=matrix, D=tmp_path / "D.npy") for word in words]
    assert main([*command, "--tol", "1e-17", "-q"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def _workers(pid: int) -> int:
    """Processes that have been started from this one, but for the tracker of shared resources."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_text() for child in children if Path(f"/proc/{child}").exists()]
    return sum("resource_tracker" not in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["solve", "reproduce"])
def test_interrupt_while_other_processes_work(command: str, tmp_path) -> None:
    """A terminal sends Ctrl-C to all processes of the command; only the first says something, and none stays."""
    blocks = [random_smoothness(40, 20.0, seed) for seed in range(120)]
    sparse.save_npz(tmp_path / "L.npz", sparse.csr_array(sparse.block_diag(blocks)))
    solve = ["solve", str(tmp_path / "L.npz"), "--sketch", "randk:10%", "--jobs", "2"]
    arguments = solve if command == "solve" else ["reproduce", "a", "--quick", "-q", "-o", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *arguments], start_new_session=True, **pipes) as started:
        while started.poll() is None and _workers(started.pid) < 2:
            time.sleep(0.05)
        time.sleep(0.3)  # some way into what they import
        os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=60)
        assert (started.returncode, out, err) == (130, "", "interrupted\n")
        with pytest.raises(ProcessLookupError):
            for _ in range(100):  # the last of them may take a moment
                os.killpg(started.pid, 0)
                time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["sdpa", "cvxopt", "scs"])
def test_standard_output_is_pure_json_whatever_the_solver_prints(matrix: str, solver: str) -> None:
    """Native libraries write to the process's output, below Python: seen only from outside the process."""
    done = process([*COMMAND, "solve", matrix, *SKETCH, "--json", "--solver", solver])
    assert json.loads(done.stdout)["solver_stats"]["solver_name"] == solver


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("--help", "| true", 0),  # the reader is gone before the first line is written
        ("doctor --json", "| true", 0),
        ("compare {L} --sketch randk:2", "| true", 0),
        # What is written to closed streams is lost; an error does not end up among the results.
        ("solve {L} --sketch randk:2 -v", "<&- >&- 2>&-", 0),
        ("solve {L} --sketch randk:9 -v", "2>&-", 2),
    ],
)
def test_closed_pipes_and_streams_are_no_error(words: str, streams: str, code: int, matrix: str) -> None:
    command = " ".join([*COMMAND, words.format(L=matrix), streams])
    done = process(["bash", "-o", "pipefail", "-c", command])
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.slow
def test_letters_that_an_encoding_lacks_are_written_by_their_numbers(matrix: str) -> None:
    words = ["compare", matrix, *SKETCH]
    done = process([*COMMAND, *words], env={**os.environ, "PYTHONIOENCODING": "ascii"}, encoding="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u03b3 I" in done.stdout


def on_terminal(arguments: list[str], kind: str) -> str:
    """What a terminal of 80 columns shows of a command."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": kind}
    streams = {"stdin": follower, "stdout": follower, "stderr": follower}
    started = subprocess.Popen([*COMMAND, *arguments], **streams, env=environment)
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    assert started.wait() == 0
    return shown.decode()


@pytest.mark.slow
def test_the_spinner_leaves_nothing_behind() -> None:
    """The spinner's line is erased before the table is printed; a terminal that cannot erase has no spinner."""
    words = ["solve-distributed", "--data", "breast_cancer", "--clients", "2", "--sketch", "randk:1"]
    words += ["--initial-gap", "1", "--delta-inf", "0", "--compare"]
    spinner, _, table = on_terminal(words, "xterm").rpartition("\x1b[2K")
    assert "D-det-CGD2, full D, independent seeds" in spinner, "there was a spinner with the name of the row"
    lines = table.splitlines()
    assert lines[0].startswith("Stepsizes for 2 clients"), "the spinner is erased before the table begins"
    assert len(lines) >= 10
    assert all(len(line) <= 80 and "\x1b" not in line for line in lines)
    assert on_terminal(words, "dumb").splitlines() == lines
