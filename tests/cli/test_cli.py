"""The command line: good and bad input, files, exit codes, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import io, sparse

from shared.reference_problems import random_smoothness
from stepsize_opt import BlockDiagonal, Direction, RandK, StepsizeResult, optimal_stepsize
from stepsize_solvers.registry import Availability
from stepsize_validation.cli.root import main

L = random_smoothness(4, 20.0, 0)
CLIENTS = ["solve-distributed", "--data", "breast_cancer", "--clients", "2", "--sketch", "randk:2"]
SKETCH = ["--sketch", "randk:2"]
RIDGE = ["--data", "breast_cancer", "--penalty", "ridge", "--reg", "0.1", "--sketch", "randk:8"]


@pytest.fixture
def matrix(tmp_path):
    path = tmp_path / "L.npy"
    np.save(path, L)
    return str(path)


class TestSolve:
    def test_table(self, matrix: str, capsys) -> None:
        assert main(["solve", matrix, "--sketch", "randk:2"]) == 0
        out = capsys.readouterr().out
        assert "optimal" in out
        assert "certified gap" in out

    def test_json(self, matrix: str, capsys) -> None:
        assert main(["solve", matrix, "--sketch", "randk:2", "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["rate"] == pytest.approx(optimal_stepsize(L, RandK(4, 2)).rate)
        assert summary["certificate"]["feasible"]

    def test_quiet(self, matrix: str, capsys) -> None:
        assert main(["solve", matrix, "--sketch", "randk:2", "-q"]) == 0
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("name", ["native", "clarabel"])
    def test_verbose_shows_the_solver_and_leaves_the_output_alone(self, matrix: str, name: str, capfd) -> None:
        assert main(["solve", matrix, "--sketch", "randk:2", "--solver", name, "-v", "--json"]) == 0
        shown = capfd.readouterr()
        assert "iter" in shown.err.lower()
        assert len(shown.err.splitlines()) > 3  # a line for each iteration
        # The log ends at the number that the result carries, in the user's coordinates.
        summary = json.loads(shown.out)
        assert float(shown.err.split()[-2]) == pytest.approx(summary["certificate"]["log_det"] / 4, abs=1e-9)
        if name == "native":
            assert float(shown.err.splitlines()[-2].split()[1]) == pytest.approx(
                summary["certificate"]["log_det"] / 4, abs=1e-6
            )

    @pytest.mark.parametrize("suffix", [".npz", ".json", ".npy", ".csv"])
    def test_output_files_hold_the_feasible_matrix(self, matrix: str, suffix: str, tmp_path) -> None:
        target = tmp_path / f"D{suffix}"
        assert main(["solve", matrix, "--sketch", "randk:2", "-q", "-o", str(target)]) == 0
        expected = optimal_stepsize(L, RandK(4, 2)).D
        if suffix == ".npz":
            found = StepsizeResult.load(target).D
        elif suffix == ".json":
            found = np.array(json.loads(target.read_text())["D"])
        elif suffix == ".npy":
            found = np.load(target)
        else:
            found = np.loadtxt(target, delimiter=",")
        np.testing.assert_array_equal(found, expected)

    def test_every_kind_of_input_file(self, tmp_path, capsys) -> None:
        np.save(tmp_path / "a.npy", L)
        np.savez(tmp_path / "b.npz", L=L, other=np.eye(2))
        np.savez(tmp_path / "c.npz", anything=L)
        sparse.save_npz(tmp_path / "d.npz", sparse.csr_matrix(L))
        np.savetxt(tmp_path / "e.csv", L, delimiter=",", fmt="%.17g")
        io.mmwrite(tmp_path / "f.mtx", L)
        rates = []
        for path in sorted(tmp_path.iterdir()):
            assert main(["solve", str(path), "--sketch", "randk:2", "--json"]) == 0
            rates.append(json.loads(capsys.readouterr().out)["rate"])
        assert len(rates) == 6
        assert max(rates) - min(rates) < 1e-6

    def test_structures_and_algorithms(self, matrix: str, capsys) -> None:
        for extra in (["--structure", "block:2,2"], ["--structure", "scalar"], ["--algorithm", "det-CGD2"]):
            assert main(["solve", matrix, "--sketch", "randk:2", "--json", *extra]) == 0
            assert json.loads(capsys.readouterr().out)["status"] == "optimal"

    def test_names_of_methods_in_any_case(self, matrix: str, capsys) -> None:
        assert main(["solve", matrix, "--sketch", "randk:2", "--json", "--algorithm", "DET-cgd2"]) == 0
        assert json.loads(capsys.readouterr().out)["algorithm"] == "det-CGD2"

    def test_data_set(self, capsys) -> None:
        assert main(["solve", "--data", "breast_cancer", "--reg", "0.1", "--sketch", "randk:25%", "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert (summary["d"], summary["sketch"]) == (30, "randk:8")

    def test_an_answer_above_the_tolerance_has_its_own_exit_code(self, matrix: str, capsys) -> None:
        assert main(["solve", matrix, "--sketch", "randk:2", "--tol", "1e-17"]) == 1
        assert "optimal_inaccurate" in capsys.readouterr().out


# One mistake for each check of the command line itself; those of the library are tested with the library.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "missing.npy", *SKETCH], "no file missing.npy"),
        (["solve", *SKETCH], "give either a matrix file or --data NAME"),
        (["solve", "L.npy", "--data", "digits", *SKETCH], "either a matrix file or --data"),
        (["solve", "L.npy", "--reg", "0.1", *SKETCH], "--reg goes with --data"),
        (["solve", "{L}", *SKETCH, "--criterion", "linear", "--lower", "0,05"], "--lower: expected a number"),
        (["solve", "{L}", "--sketch", "randk:9"], "k must be a whole number from 1 to d=4, got 9"),
        (["solve", "{L}", *SKETCH, "--structure", "block:a"], "--structure: expected full, diagonal"),
        (["solve", "{L}", *SKETCH, "--algorithm", "det-CGD3"], "algorithm must be one of 'det-CGD1', 'det-CGD2'"),
        (["solve", "{L}", *SKETCH, "--solver", "gurobi"], "unknown solver 'gurobi'"),
        (["solve", "{L}", *SKETCH, "-o", "D.txt"], "expected a name that ends in"),
        (["solve", "{L}", *SKETCH, "-o", "nowhere/D.npz"], "folder nowhere does not exist"),
        (["solve", "{L}", *SKETCH, "--tol", "-1"], "--tol: expected a finite positive number"),
        (["solve", "{L}", *SKETCH, "--time-limit", "-1"], "--time-limit: expected a positive number"),
        (["solve", "{L}", *SKETCH, "--jobs", "0"], "--jobs: expected a number of processes"),
        (["solve", "{bad}", *SKETCH], "cannot be read as a matrix"),
        (["solve", "{text}", *SKETCH], "expected one of .npy, .npz, .csv, .mtx"),
        (["solve", "{folder}", *SKETCH], "it is a folder; name a file"),
        (["solve", "--data", "nothing", *SKETCH], "no data set 'nothing'; known here: breast_cancer"),
        (["plan", "{L}", "--initial-gap", "1"], "needs epsilon2"),
        (["plan", "{L}", "--initial-gap", "1", "--epsilon2", "1", "--seed", "3"], "--seed is that of the shuffle"),
        (["compare", *RIDGE, "--criterion", "linear", "--lower", "0.2"], "lower must lie below the Hessian"),
        ([*CLIENTS, "--seeds", "shared", "--epsilon2", "1e-320"], "iterations exceeds float64"),
        ([*CLIENTS, "--delta-inf", "-1e-9"], "--delta-inf: expected a finite number of at least 0, got '-1e-9'"),
        ([*CLIENTS, "--compare", "--tight"], "--compare shows a fixed set of methods and does not go with --tight"),
        (["table", "{L}", "--layers", "1,2"], "layers (1, 2) add up to 3, but L is 4×4"),
        (["table", "{L}", "--layers", "x"], "--layers: expected positive whole numbers"),
        (["demo", "--seed", "-1"], "--seed: expected a whole number of at least 0, got '-1'"),
        (["bench", "--solvers", "simplex"], "unknown solver 'simplex'"),
        (["frobnicate"], "see 'stepsize-opt --help'"),
    ],
)
def test_mistakes_get_one_line_and_no_traceback(arguments, message: str, matrix: str, tmp_path, capsys) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n")
    (tmp_path / "L.txt").write_text("1\n")
    (tmp_path / "folder.npy").mkdir()
    names = {"{L}": matrix, "{bad}": "bad.csv", "{text}": "L.txt", "{folder}": "folder.npy"}
    assert main([str(tmp_path / names[a]) if a in names else a for a in arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_solver_that_cannot_run(matrix: str, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("MOSEKLM_LICENSE_FILE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in (["solve", matrix, "--sketch", "randk:2", "--solver", "mosek"], ["bench", "--solvers", "mosek,scs"]):
        assert main(command) == 3
        assert "no licence" in capsys.readouterr().err


def test_a_data_folder_that_does_not_exist(monkeypatch, capsys) -> None:
    monkeypatch.setenv("STEPSIZE_OPT_DATA", "nowhere")
    assert main(["solve", "--data", "a1a", "--sketch", "randk:2"]) == 2
    assert "STEPSIZE_OPT_DATA names the folder nowhere, which does not exist" in capsys.readouterr().err
    assert main(["doctor"]) == 0
    assert "nowhere does not exist; set STEPSIZE_OPT_DATA" in capsys.readouterr().out


def test_usage_errors_and_help(capsys) -> None:
    for arguments in ([], ["solve"]):
        assert main(arguments) == 2
        assert "--help'" in capsys.readouterr().err
    for arguments in (["--help"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_solve_for_the_descent_metric(matrix: str, tmp_path, capsys) -> None:
    words = ["solve", matrix, "--sketch", "randk:2", "--guarantee", "descent"]
    assert main(words) == 0
    assert "det(H)" in capsys.readouterr().out
    summaries = {}
    L = np.load(matrix)
    np.save(tmp_path / "M.npy", L)
    least = float(np.linalg.eigvalsh(L)[0])
    for name, more in {
        "det": [],
        "euclidean": ["--criterion", "euclidean"],
        "number": ["--criterion", "linear", "--lower", str(0.5 * least)],
        "matrix": ["--criterion", "linear", "--lower", str(tmp_path / "M.npy")],
    }.items():
        assert main([*words, *more, "--json"]) == 0
        summaries[name] = json.loads(capsys.readouterr().out)
        assert summaries[name]["guarantee"] == "descent"
    assert summaries["number"]["rate"] == pytest.approx(0.5 * least * summaries["euclidean"]["rate"], rel=2e-6)
    assert summaries["number"]["rate"] < summaries["matrix"]["rate"] < 1.0
    assert main([*words, "--criterion", "linear"]) == 2
    assert "which it needs" in capsys.readouterr().err
    assert main([*words, "--criterion", "convex"]) == 2
    assert "guarantee='condition'" in capsys.readouterr().err
    for criterion in ("euclidean", "convex"):
        assert main([*words[:-2], "--criterion", criterion, "--json"]) == 0
        summary = json.loads(capsys.readouterr().out)
        assert (summary["guarantee"], summary["criterion"]) == ("condition", criterion)
        assert summary["status"] == "optimal"
    assert (
        main(["compare", words[1], "--sketch", "randk:2", "--criterion", "linear", "--lower", "0.001", "--json"]) == 0
    )
    assert all(row["rate"] < 1.0 for row in json.loads(capsys.readouterr().out))


def test_certify_by_another_criterion(matrix: str, tmp_path, capsys) -> None:
    words = [matrix, "--sketch", "randk:2", "--criterion", "euclidean"]
    assert main(["solve", *words, "-q", "-o", str(tmp_path / "D.npy")]) == 0
    assert main(["certify", str(tmp_path / "D.npy"), *words, "--json"]) == 0
    check = json.loads(capsys.readouterr().out)
    assert check["feasible"] and check["gap"] <= 1e-6 and check["rate"] <= check["descent_rate"]
    assert main(["certify", str(tmp_path / "D.npy"), *words]) == 0
    assert "D ⪰ tI" in capsys.readouterr().out


@pytest.mark.parametrize(
    "goal",
    [
        ["--guarantee", "descent"],
        ["--criterion", "euclidean"],
        ["--criterion", "convex"],
        ["--guarantee", "descent", "--criterion", "linear", "--lower", "0.001"],
    ],
    ids=lambda goal: "-".join(goal[1::2]),
)
def test_certify_judges_a_saved_result_by_its_own_goal(goal: list[str], matrix: str, tmp_path, capsys) -> None:
    saved = str(tmp_path / "D.npz")
    assert main(["solve", matrix, "--sketch", "randk:2", *goal, "-q", "-o", saved]) == 0
    if "linear" in goal:
        assert main(["certify", saved, matrix]) == 2
        assert "lower is the M" in capsys.readouterr().err
    assert main(["certify", saved, matrix, *(goal[-2:] if "--lower" in goal else [])]) == 0
    assert main(["certify", saved, matrix, "--guarantee", "condition", "--criterion", "det"]) == 1


def test_certify_says_no_only_where_d_is_infeasible(tmp_path, capsys) -> None:
    for name, M in (("L", np.diag([2.0, 4.0])), ("D", np.diag([0.5, 0.25])), ("E", np.diag([0.6, 0.25]))):
        np.save(tmp_path / f"{name}.npy", M)
    for name, said in (("D", "not proved (margin"), ("E", "no (margin")):
        words = [str(tmp_path / f"{name}.npy"), str(tmp_path / "L.npy"), "--sketch", "identity"]
        assert main(["certify", *words]) == 1
        assert said in capsys.readouterr().out


def test_the_log_of_clients_ends_at_the_number_of_the_result(capfd) -> None:
    words = [*CLIENTS, "--structure", "diagonal", "--initial-gap", "1", "--delta-inf", "0", "-v", "--json"]
    assert main(words) == 0
    shown = capfd.readouterr()
    assert f"proved K = {json.loads(shown.out)['K']}, gap" in shown.err.splitlines()[-1]


def test_compare(matrix: str, capsys) -> None:
    assert main(["compare", matrix, "--sketch", "randk:2"]) == 0
    assert "γ L⁻¹" in capsys.readouterr().out
    assert main(["compare", matrix, "--sketch", "randk:2", "--criterion", "linear", "--lower", "0.001"]) == 0
    assert "t with H ⪰ tM⁻¹" in capsys.readouterr().out
    assert main(["compare", matrix, "--sketch", "randk:2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 7


def test_doctor_shows_the_extra_to_install(capsys, monkeypatch) -> None:
    missing = Availability("copt", "not installed: pip install 'stepsize-opt[copt]'")
    monkeypatch.setattr("stepsize_validation.cli.doctor.available_solvers", lambda: (missing,))
    assert main(["doctor"]) == 0
    assert "stepsize-opt[copt]" in capsys.readouterr().out


def test_doctor(capsys) -> None:
    assert main(["doctor"]) == 0
    assert "native" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"name": "native", "available": True, "reason": None} in report["solvers"]
    assert report["packages"]["numpy"] == np.__version__
    assert report["blas"]


class TestCertify:
    def test_the_optimum_and_its_double(self, matrix: str, tmp_path, capsys) -> None:
        D = optimal_stepsize(L, RandK(4, 2)).D
        np.save(tmp_path / "D.npy", D)
        assert main(["certify", str(tmp_path / "D.npy"), matrix, "--sketch", "randk:2"]) == 0
        assert "yes, proved" in capsys.readouterr().out
        np.save(tmp_path / "D.npy", 2 * D)
        assert main(["certify", str(tmp_path / "D.npy"), matrix, "--sketch", "randk:2", "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert not report["feasible"]
        assert report["gap"] == "inf"
        assert report["largest_scale"] == pytest.approx(0.5, abs=1e-6)

    def test_a_saved_result(self, matrix: str, tmp_path) -> None:
        path = optimal_stepsize(L, RandK(4, 2)).save(tmp_path / "D.npz")
        assert main(["certify", str(path), matrix, "--sketch", "randk:2", "-q"]) == 0

    @pytest.mark.parametrize(
        ("algorithm", "structure"),
        [("det-CGD1", "diagonal"), ("det-CGD2", "full"), ("det-CGD1", BlockDiagonal((2, 2)))],
    )
    def test_a_saved_result_says_what_it_is_for(self, matrix: str, tmp_path, algorithm, structure, capsys) -> None:
        path = optimal_stepsize(L, RandK(4, 2), algorithm=algorithm, structure=structure).save(tmp_path / "D.npz")
        assert main(["certify", str(path), matrix, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["gap"] <= 1e-6
        # Options overrule the file: among all matrices the diagonal one is not the best.
        if structure == "diagonal":
            assert main(["certify", str(path), matrix, "--structure", "full", "-q"]) == 1

    def test_what_the_file_does_not_say(self, matrix: str, tmp_path, capsys) -> None:
        np.save(tmp_path / "D.npy", 0.01 * np.eye(4))
        assert main(["certify", str(tmp_path / "D.npy"), matrix]) == 2
        assert "name it with --sketch" in capsys.readouterr().err
        path = optimal_stepsize(L, RandK(4, 2), structure=Direction(np.eye(4))).save(tmp_path / "W.npz")
        assert main(["certify", str(path), matrix]) == 2
        assert "structure must be given" in capsys.readouterr().err
        assert main(["certify", str(path), matrix, "--structure", "scalar", "-q"]) == 0

    def test_a_matrix_that_is_not_positive_definite(self, matrix: str, tmp_path, capsys) -> None:
        np.save(tmp_path / "D.npy", -np.eye(4))
        assert main(["certify", str(tmp_path / "D.npy"), matrix, "--sketch", "randk:2"]) == 1
        assert "D is not positive definite" in capsys.readouterr().out

    def test_wrong_size(self, matrix: str, tmp_path, capsys) -> None:
        np.save(tmp_path / "D.npy", np.eye(3))
        assert main(["certify", str(tmp_path / "D.npy"), matrix, "--sketch", "randk:2"]) == 2
        assert "D is 3×3 but L is 4×4" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--print-completion", shell])
    assert stop.value.code == 0
    assert "certify" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["sdpa", "copt", "scs"])
def test_standard_output_is_pure_json_whatever_the_solver_prints(matrix: str, solver: str) -> None:
    """Native libraries write to the process's output, below Python: seen only from outside the process."""
    command = [
        sys.executable,
        "-m",
        "stepsize_validation.cli",
        "solve",
        matrix,
        "--sketch",
        "randk:2",
        "--json",
        "--solver",
        solver,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "not installed" in done.stderr:
        pytest.skip(f"{solver} is not installed")
    assert json.loads(done.stdout)["solver_stats"]["solver_name"] == solver


def test_demo(capsys) -> None:
    assert main(["demo", "--iterations", "200", "--seeds", "4"]) == 0
    out = capsys.readouterr().out
    for part in ("certified gap", "predicted", "observed", "det-CGD2", "holds"):
        assert part in out
    assert "violated" not in out


def test_demo_figure(tmp_path, capsys) -> None:
    path = tmp_path / "demo.png"
    assert main(["demo", "--iterations", "50", "--seeds", "2", "--figure", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert main(["demo", "--figure", str(tmp_path / "nowhere" / "demo.png")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_demo_json(capsys) -> None:
    assert main(["demo", "--iterations", "100", "--seeds", "4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["rows"]) == 7
    for row in report["rows"]:
        checks = [row["theorem_1"], row["descent_metric"]]
        assert (checks[0] is None) == (row["stepsize"] == "optimal, descent")
        assert all(check is None or check["verdict"] in ("holds", "undecided") for check in checks)
        assert row["final_gap"] > 0.0


def test_linear_with_a_ridge_needs_no_lower(capsys) -> None:
    assert main(["compare", *RIDGE, "--criterion", "linear", "--json"]) == 0
    left_out = json.loads(capsys.readouterr().out)
    assert main(["compare", *RIDGE, "--criterion", "linear", "--lower", "0.1", "--json"]) == 0
    assert [row["rate"] for row in json.loads(capsys.readouterr().out)] == [row["rate"] for row in left_out]


def test_certify_judges_convex_by_its_own_condition(matrix: str, tmp_path, capsys) -> None:
    saved = str(tmp_path / "H.npz")
    assert main(["solve", matrix, "--sketch", "randk:2", "--guarantee", "descent", "-o", saved, "-q"]) == 0
    assert main(["certify", saved, matrix, "-q"]) == 0
    assert main(["certify", saved, matrix, "--criterion", "convex", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["feasible"] is False


def test_a_device_is_not_replaced(matrix: str, tmp_path, capsys) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "D.npz").symlink_to(pipe)
    assert main(["solve", matrix, "--sketch", "randk:2", "-o", str(tmp_path / "D.npz"), "-q"]) == 2
    assert "is not a regular file" in capsys.readouterr().err and pipe.is_fifo()


def test_a_spreadsheet_writes_a_mark_before_the_first_number(tmp_path, capsys) -> None:
    (tmp_path / "L.csv").write_text("2,0\n0,1\n", encoding="utf-8-sig")
    assert main(["solve", str(tmp_path / "L.csv"), "--sketch", "randk:1", "-q"]) == 0
