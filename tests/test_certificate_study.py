"""A sample of the study of ``make study``: every solver's answer is feasible without rounding, intervals overlap."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.registry import available_solvers
from validation.certificate_study import main, study_case
from validation.random_problems import KINDS, random_problem, random_sketch

SOLVERS = [entry.name for entry in available_solvers() if entry.available]


@pytest.mark.parametrize("index", range(12))
def test_sample(index: int) -> None:
    case = study_case(1, index, SOLVERS, max_d=5)
    assert case.overlap
    assert all(row.feasible for row in case.rows if not row.error)
    assert not next(row for row in case.rows if row.solver == "native").error


def test_raw_answers_are_infeasible_where_the_returned_ones_are_not() -> None:
    """SCS is outside by more than rounding on some problem of the sample; that is what repair is for."""
    rows = [row for index in range(6) for row in study_case(2, index, ["scs"], max_d=5).rows]
    assert max(row.raw_violation for row in rows) > 1e-9
    assert all(row.feasible for row in rows)


def test_command(capsys, monkeypatch) -> None:
    assert main(["--problems", "3", "--max-d", "3", "--max-condition", "10", "--jobs", "1"]) == 0
    assert "3 problems, 0 with an infeasible answer" in capsys.readouterr().out


def test_every_kind_is_drawn() -> None:
    rng = np.random.default_rng(0)
    assert {random_problem(rng, 4, 10.0).kind for _ in range(200)} == set(KINDS)
    with pytest.raises(ValueError, match="unknown kind 'top-k'"):
        random_sketch(rng, "top-k", 3)
