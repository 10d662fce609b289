"""What the benchmark concludes, on runs whose times and gaps are made up."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from stepsize_validation.bench.analysis import (
    Rival,
    absent,
    common_problems,
    competitors,
    default_grid,
    fastest_others,
    growth,
    performance_profiles,
    ratios_to_native,
    standings,
)
from stepsize_validation.bench.plots import draw_all
from stepsize_validation.bench.problems import ProblemSpec, size_problems
from stepsize_validation.bench.prose import summary
from stepsize_validation.bench.records import (
    DONE,
    NO_LICENCE,
    TIME_LIMIT,
    BenchRun,
    BenchSettings,
    Configuration,
    Rung,
    Task,
    all_configurations,
    default_configuration,
)
from stepsize_validation.bench.store import Results
from stepsize_validation.bench.stored import FACTOR, Comparison, check, check_table
from stepsize_validation.bench.tables import (
    TextTable,
    all_tables,
    formulation_table,
    seconds_text,
    time_cell,
    time_table,
)
from stepsize_validation.terminal import folded

SIZES = (10, 20, 40)


def rung(seconds: float, gap: float | None, tol: float = 1e-6, status: str = "optimal") -> Rung:
    """A rung with the given time and certified gap."""
    return Rung(tol, status, seconds, seconds, 0.0, 0.0, seconds, 1, 1e-8, 1.0, gap, 0.0, 5.0, 1, False)


def run(solver: str, problem: ProblemSpec, *rungs: Rung, status: str = DONE) -> BenchRun:
    """A run of the default formulation."""
    return BenchRun(Task(problem, default_configuration(solver, problem)), status, "", rungs, 1.0, 2.0)


def made_up() -> Results:
    """native in d³/10⁶ s, clarabel in d⁵/10⁷ s but not at d = 40, scs faster than native at d = 20 only, no MOSEK."""
    runs = []
    for problem in size_problems(SIZES):
        d = problem.d
        runs.append(run("native", problem, rung(d**3 / 1e6, 1e-9)))
        slow = run("clarabel", problem, rung(d**5 / 1e7, 5e-7))
        runs.append(slow if d < 40 else run("clarabel", problem, status=TIME_LIMIT))
        coarse = rung(1e-4, 1e-4, tol=1e-3)
        # Called optimal at 1e-6, certified to 1e-5 only.
        fine = rung(d**3 / 2e6, 1e-7) if d == 20 else rung(0.1, 1e-5)
        runs.append(run("scs", problem, coarse, fine))
        runs.append(run("mosek", problem, status=NO_LICENCE))
    return Results(BenchSettings(), runs=tuple(runs))


class TestAnalysis:
    def test_time_is_that_of_the_first_rung_within_the_certified_gap(self) -> None:
        problem = size_problems((10,))[0]
        ladder = run("scs", problem, rung(1.0, 1e-2), rung(2.0, 1e-4), rung(5.0, 1e-7), rung(3.0, None))
        assert ladder.seconds_to(1e-3) == 2.0
        assert ladder.seconds_to(1e-6) == 5.0
        assert ladder.seconds_to(1e-8) is None
        assert ladder.best_gap == 1e-7
        assert run("scs", problem).best_gap is None

    def test_growth(self) -> None:
        results = made_up()
        native = growth(results, "native", 1e-6)
        assert native is not None
        assert native.slope == pytest.approx(3.0)
        assert native.sizes == SIZES
        assert native.seconds(np.array([100.0])) == pytest.approx([1.0])
        # Two sizes are too few for a slope.
        assert growth(results, "clarabel", 1e-6) is None

    def test_who_takes_part(self) -> None:
        results = made_up()
        assert competitors(results) == ["native", "clarabel", "scs"]
        assert absent(results) == {"mosek": NO_LICENCE}
        assert len(common_problems(results)) == 3

    def test_ratios(self) -> None:
        ratios = ratios_to_native(made_up(), "clarabel", 1e-6)
        assert [ratios[problem] for problem in size_problems((10, 20))] == pytest.approx([10.0, 40.0])

    def test_profiles(self) -> None:
        profiles = {profile.label: profile for profile in performance_profiles(made_up(), 1e-6)}
        at = {name: dict(zip(p.factors, p.fractions, strict=True)) for name, p in profiles.items()}
        # native wins at 10 and 40 and is within a factor 2 at 20; clarabel never solves d = 40.
        assert at["native"][1.0] == pytest.approx(2 / 3)
        assert at["scs"][1.0] == pytest.approx(1 / 3)
        assert profiles["native"].fractions[-1] == 1.0
        assert profiles["clarabel"].fractions[-1] == pytest.approx(2 / 3)
        assert all(np.all(np.diff(profile.fractions) >= 0.0) for profile in profiles.values())
        assert performance_profiles(Results(BenchSettings()), 1e-6) == []

    def test_standings(self) -> None:
        rows = {row.label: row for row in standings(made_up())}
        assert rows["native"].reached == (3, 3, 3)
        assert rows["scs"].reached == (3, 1, 0)
        assert rows["clarabel"].ratio == pytest.approx(math.sqrt(10.0 * 40.0))
        # Rungs of scs: three at 1e-3 that keep their word, two at 1e-6 that do not, one that does.
        assert (rows["scs"].overclaimed, rows["scs"].claimed) == (2, 6)
        assert rows["native"].peak_mb == pytest.approx(3.0)

    def test_fastest_other(self) -> None:
        others = fastest_others(made_up(), 1e-6)
        assert {problem.d: rival.label for problem, rival in others.items()} == {10: "clarabel", 20: "scs"}
        assert others[size_problems((20,))[0]].factor == pytest.approx(0.5)

    def test_the_others_with_their_model_compiled(self) -> None:
        problem = size_problems((10,))[0]
        theirs = replace(rung(4.0, 1e-9), setup=0.5, compile=2.5, solve=1.0)
        results = Results(BenchSettings(), runs=(run("native", problem, rung(2.0, 1e-9)), run("scs", problem, theirs)))
        assert fastest_others(results, 1e-6)[problem] == Rival("scs", 2.0)
        assert fastest_others(results, 1e-6, compiled=True)[problem] == Rival("scs", 0.5)
        assert "compile their model the mean is 0.5, the smallest factor 0.5 (scs on d=10)" in summary(results)[1]

    def test_only_default_formulations_compete(self) -> None:
        problem = size_problems((10,))[0]
        runs = tuple(
            BenchRun(Task(problem, how), DONE, "", (rung(float(i + 1), 1e-9),))
            for i, how in enumerate(all_configurations("clarabel", problem))
        )
        iterating = BenchRun(Task(problem, Configuration("native", iterate=True)), DONE, "", (rung(1.0, 1e-9),))
        results = Results(BenchSettings(), runs=(*runs, iterating))
        assert set(default_grid(results)[problem]) == {"clarabel", "native (iterates)"}
        assert competitors(results) == ["clarabel"]
        table = formulation_table(results)
        assert table is not None
        assert len(table.rows) == 4
        assert table.rows[2][0] == "clarabel (quadratic, log det)"


class TestWords:
    def test_the_summary_says_what_the_runs_say(self) -> None:
        speed, compiled = summary(made_up())
        assert "took 2.24 times the processor time of native in the geometric mean over 2 problems" in speed
        assert "from 0.5 times (scs on d=20) to 10 times (clarabel on d=10); another was faster on d=20 (scs)." in speed
        assert "the smallest factor 0.5 (scs on d=20)" in compiled

    def test_a_closed_form_is_named(self) -> None:
        problem = size_problems((10,))[0]
        closed = replace(rung(1.0, 1e-9), closed_form=True)
        results = Results(BenchSettings(), runs=(run("native", problem, closed), run("scs", problem, rung(4.0, 1e-9))))
        speed, _, form = summary(results)
        assert "another was faster on none of them" in speed
        assert form == "The answer of native was a closed form on d=10."

    def test_nothing_is_said_about_nothing(self) -> None:
        assert summary(Results(BenchSettings())) == []

    def test_cells(self) -> None:
        problem = size_problems((10,))[0]
        assert time_cell(None, 1e-6) == "–"
        assert time_cell(run("scs", problem, rung(0.0123, 1e-7)), 1e-6) == "0.012"
        assert time_cell(run("scs", problem, rung(1.0, 2e-5)), 1e-6) == "gap 2e-05"
        assert time_cell(run("scs", problem, rung(1.0, None)), 1e-6) == "no answer"
        assert time_cell(run("scs", problem, rung(1.0, 2e-5), status=TIME_LIMIT), 1e-6) == TIME_LIMIT
        assert [seconds_text(s) for s in (123.4, 9.87, 0.0042, 0.00015)] == ["123", "9.9", "0.0042", "0.00015"]

    def test_tables_fit_a_terminal(self) -> None:
        console = Console(width=80, record=True, file=Path("/dev/null").open("w"))
        short: list[str] = []
        for table in all_tables(made_up()):
            console.print(*folded(table.rich(), console), sep="\n")
            short += [cell for row in table.rows for cell in row if len(cell) <= 24]
            assert table.markdown().count("\n| ") == len(table.rows)
        console.file.close()
        shown = console.export_text()
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= 80
        assert short and all(cell in shown for cell in short), "no number or name is cut"
        assert "mosek: no licence" in time_table(made_up()).note

    def test_ragged_tables_are_refused(self) -> None:
        with pytest.raises(ValueError, match="expected 2"):
            TextTable("t", ("a", "b"), (("1",),))

    def test_brackets_are_text(self) -> None:
        console = Console(record=True, width=80, file=StringIO())
        console.print(TextTable("t", ("solver", "why"), (("copt", "install x[copt]"),), "note [a]").rich())
        text = console.export_text()
        assert "x[copt]" in text and "note [a]" in text

    def test_figures(self, tmp_path) -> None:
        assert len(draw_all(made_up(), tmp_path)) == 3
        assert draw_all(Results(BenchSettings()), tmp_path / "none") == []


class TestCheck:
    @pytest.fixture
    def rerun(self, monkeypatch):
        """Run tasks again by giving the made-up runs with the times of one solver multiplied."""

        def install(factors: dict[str, float], failing: str = "") -> None:
            stored = made_up()

            def run_task(task: Task, settings: BenchSettings) -> BenchRun:
                before = stored.find(task)
                assert before is not None
                solver = task.configuration.solver
                rungs = () if solver == failing else before.rungs
                scaled = [rung(r.seconds * factors.get(solver, 1.0), r.gap, r.tol) for r in rungs]
                return BenchRun(task, before.status, "", tuple(scaled))

            monkeypatch.setattr("stepsize_validation.bench.stored.run_task", run_task)

        return install

    def test_the_same_ratios_hold(self, rerun) -> None:
        # A machine that is five times slower at everything is no difference.
        rerun({"native": 5.0, "clarabel": 5.0, "scs": 5.0})
        rows = {row.label: row for row in check(made_up())}
        assert all(row.holds for row in rows.values())
        assert rows["clarabel"].stored == pytest.approx(rows["clarabel"].now)
        assert "native" not in rows

    @pytest.mark.parametrize("factor", [2.0 * FACTOR, 0.5 / FACTOR])
    def test_another_ratio_does_not_hold(self, rerun, factor: float) -> None:
        rerun({"clarabel": factor})
        rows = {row.label: row for row in check(made_up())}
        assert not rows["clarabel"].holds
        assert rows["scs"].holds
        assert "NO" in check_table(list(rows.values()), made_up()).markdown()

    @pytest.mark.parametrize("name", ["clarabel", "native"])
    def test_a_solver_that_fails_now(self, rerun, name: str) -> None:
        rerun({}, failing=name)
        rows = {row.label: row for row in check(made_up())}
        assert not rows[name].holds
        assert "not reached any more" in rows[name].verdict

    def test_a_solver_that_is_not_here(self, rerun, monkeypatch) -> None:
        rerun({})
        monkeypatch.setattr("stepsize_validation.bench.stored.available_solvers", lambda: ())
        rows = check(made_up())
        assert all(row.holds and row.verdict.startswith("not compared") for row in rows)

    def test_nothing_to_compare(self) -> None:
        with pytest.raises(ValueError, match="no problem up to d=20"):
            check(Results(BenchSettings()))

    def test_verdicts(self) -> None:
        assert Comparison("a", 1.0, FACTOR).holds
        assert not Comparison("a", 1.0, 1.01 * FACTOR).holds
        assert not Comparison("a", 1.01 * FACTOR, 1.0).holds
