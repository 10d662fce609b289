"""The command ``plan``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepsize_validation.cli import main

NUMBERS = ["--epsilon2", "1e-2", "--initial-gap", "1"]


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    path = tmp_path / "L.npy"
    np.save(path, np.array([[2.0, 1.0], [1.0, 3.0]]))
    return str(path)


def test_table_and_figure(matrix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "plan.png"
    assert main(["plan", matrix, "--budget", "1", *NUMBERS, "--figure", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "subspace" in out and "895" in out and "\n! GD" in out
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_json_of_two_criteria(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", matrix, "--criterion", "det,euclidean", *NUMBERS, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["criterion"] for row in answer["rows"] if row["best"]] == ["det", "euclidean"]
    assert set(answer["limit_rounds"]) == {"det", "euclidean"}


def test_a_budget_that_nothing_keeps_has_an_exit_code(matrix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", matrix, "--total", "5", *NUMBERS]) == 1
    assert "no method stays within the budget" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clients", "2", *NUMBERS], "--clients shares the rows of --data"),
        (["--initial-gap", "1"], "needs epsilon2"),
        (["--epsilon2", "1"], "--initial-gap is needed with a matrix file"),
        (["--figure", "plan.txt", *NUMBERS], "expected a name that ends in"),
    ],
)
def test_mistakes(matrix: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", matrix, *arguments]) == 2
    assert message in capsys.readouterr().err
