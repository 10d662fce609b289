"""The command ``solve-distributed``: clients from matrix files and from a data set, sketches, exit codes, errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.clients import random_clients
from stepsize_opt import Identity, RandK, optimal_distributed_stepsize
from stepsize_validation.cli.root import main

TARGETS: dict[str, Any] = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.2}
GOAL = ["--epsilon2", "1e-2", "--initial-gap", "1", "--delta-inf", "0.2"]
DATA = ["solve-distributed", "--data", "breast_cancer", "--clients", "3"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The matrices of three clients in different formats."""
    first, second, third = random_clients(4, 3, 1)
    np.save(tmp_path / "a.npy", first)
    np.savetxt(tmp_path / "b.csv", second, delimiter=",", fmt="%.17g")
    sparse.save_npz(tmp_path / "c.npz", sparse.csr_array(third))
    np.save(tmp_path / "small.npy", np.eye(2))
    return [str(tmp_path / name) for name in ("a.npy", "b.csv", "c.npz")]


SHARED = {"algorithm": "det-CGD2", "seeds": "shared", "goal": "descent"}


@pytest.mark.parametrize(
    ("texts", "options"),
    [(["randk:1"], {}), (["randk:1"], SHARED), (["randk:1", "randk:2", "identity"], {"structure": "diagonal"})],
    ids=["one sketch", "shared seeds", "sketches"],
)
def test_matrix_files_give_the_answer_of_the_library(
    texts: list[str], options: dict[str, Any], files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sketches = [word for text in texts for word in ("--sketch", text)]
    choice = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert main(["solve-distributed", *files, *sketches, *choice, *GOAL, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    laws = [RandK(4, 1)] * 3 if len(texts) == 1 else [RandK(4, 1), RandK(4, 2), Identity(4)]
    expected = optimal_distributed_stepsize(random_clients(4, 3, 1), laws, **TARGETS, **options)
    assert summary["clients"] == 3 and summary["K"] == expected.K and summary["rate"] == expected.rate
    assert all(summary[name] == value for name, value in options.items())
    assert main(["solve-distributed", *files, *sketches, *GOAL, "--compare", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert any(row["seeds"] == "shared" for row in rows) is (len(texts) == 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{a}", "{b}", *["--sketch", "randk:1"] * 3, *GOAL], "sketch"),
        (["{a}", "{small}", "--sketch", "randk:1", *GOAL], "smoothness[1] is 2×2 but smoothness[0] is 4×4"),
        (["{a}", "--sketch", "randk:1", *GOAL[:4]], "--delta-inf"),
        (["{a}", "--sketch", "randk:1", "--clients", "2", *GOAL], "--clients"),
        (["{a}", "--sketch", "randk:1", "--data", "digits"], "--data"),
        (["--sketch", "randk:1"], "--data"),
        (["--data", "digits", "--sketch", "randk:1"], "--clients"),
        (["{a}", "{b}", "--sketch", "randk:9", *GOAL], "k must be"),
        (["{a}", "{b}", "--sketch", "randk:1", *GOAL, "-o", "D.txt"], "--output D.txt"),
    ],
)
def test_a_mistake_gets_one_line(
    words: list[str], message: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"a": files[0], "b": files[1], "small": files[0].replace("a.npy", "small.npy")}
    assert main(["solve-distributed", *(word.format(**places) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_data_set_shared_by_clients(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    quick = [*DATA, "--sketch", "randk:5", "--structure", "scalar", "--initial-gap", "0.5", "--delta-inf", "0.1"]
    out = tmp_path / "D.csv"
    assert main([*quick, "--json", "-o", str(out)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["clients"] == 3
    np.testing.assert_allclose(np.linalg.slogdet(np.loadtxt(out, delimiter=","))[1] / 30, math.log(summary["rate"]))
    assert main([*quick, "--iterations", "1"]) == 1
    assert "infeasible" in capsys.readouterr().out
    assert main([*quick, "-q"]) == 0 and capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_paper_s_setting_on_embedded_data(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    words = ["solve-distributed", "--data", "breast_cancer", "--clients", "10", "--sketch", "randk:1", "--compare"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    K = {(row["method"], row["stepsize"]): row["rounds"] for row in rows if row["seeds"] == "independent"}
    assert all(row["status"] in ("formula", "optimal") and (row["gap"] or 0.0) <= 1e-6 for row in rows)
    assert K["DCGD", "scalar"] >= K["DCGD-mat", "scalar"] >= K["D-det-CGD1", "diagonal"] >= K["D-det-CGD1", "full"]
    assert K["D-det-CGD1", "diagonal"] == K["D-det-CGD2", "diagonal"]  # diagonal matrices commute
    assert K["D-det-CGD2", "diagonal"] >= K["D-det-CGD2", "full"]
    assert all(row["floats"] == 10 * row["rounds"] for row in rows)  # one float a client and round
