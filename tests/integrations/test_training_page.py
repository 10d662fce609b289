"""Every block of docs/training.md runs, scripts with the command that the page names, and so do the examples."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from integrations.processes import python
from shared.pages import alike, examples
from stepsize_opt.torch import compress

ROOT = Path(__file__).parents[2]
EXAMPLES = examples(ROOT / "docs" / "training.md", "py|python")
FILES = {match[1]: (code, shown) for code, shown in EXAMPLES if (match := re.match(r"# file: (\S+)\n", code))}


def shell(folder: Path, *command: str) -> str:
    done = python(*command, folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_blocks_run_one_after_the_other_and_print_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "document"}
    rest = [example for example in EXAMPLES if example not in FILES.values()]
    assert len(rest) >= 2
    for code, shown in rest:
        exec(compile(code, "training.md", "exec"), names)
        assert alike(capsys.readouterr().out, shown)


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "torch.distributed.run", "--standalone", "--log-dir", "logs", "--nproc-per-node", "2", "train.py"],
    ],
    ids=lambda command: command[-1],
)
def test_scripts_print_what_is_shown(command: list[str], tmp_path: Path) -> None:
    code, shown = FILES[command[-1]]
    (tmp_path / command[-1]).write_text(code)
    assert shown and alike(shell(tmp_path, *command), shown)


def study() -> Any:
    """The script of the study as a module."""
    spec = importlib.util.spec_from_file_location("study", ROOT / "examples" / "torch" / "study.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_of_the_study_has_every_run() -> None:
    """``docs/fill.py --check`` compares the table of the page with it."""
    module = study()
    table = pd.read_csv(ROOT / "docs" / "training" / "full.csv")
    methods = {*module.OURS, *module.BASELINES}
    assert tuple(table.columns) == module.Run._fields
    assert set(table["method"]) == methods
    assert len(table) == len(module.PROBLEMS) * len(methods) * len(module.SEEDS) * len(module.BUDGETS)


def test_the_study_runs_and_counts_its_bytes() -> None:
    """With the threads of the study, on the smallest problem: the bytes of the plan, and losses that fall."""
    module = study()
    module.BUDGETS = (3,)
    problem = module.head()
    for name, options in module.OURS.items():
        points = module.ours(problem, seed=0, **options)
        first, last = points[0], points[-1]
        assert (last.sent - first.sent) / (len(points) - 1) >= 4.0 * (problem.d // 20), name
        assert 0.0 < first.seconds < last.seconds
        assert problem.score(last.x)[0] < problem.score(problem.start(0))[0]
    points = module.baseline(problem, "PowerSGD", {"lr": 4.0, "momentum": 0.0}, 0, 4.0 * 3 * problem.d)
    assert points[0].sent == 4.0 * (10 + 32 + 10)
    module.SEEDS, module.OURS = (0,), {"feedback": module.OURS["feedback"]}
    runs, curves = module.runs_of("softmax head")
    assert len(runs) == 1 + len(module.BASELINES) and set(curves) == {"feedback", *module.BASELINES}
    assert all(run.loss >= 0.0 and run.seconds > 0.0 for run in runs)


def test_four_workers_in_one_process_send_what_four_processes_do() -> None:
    """The simulation of feedback with one worker makes the steps of the optimizer itself."""
    module = study()
    module.BUDGETS, module.WORKERS = (3,), 1
    problem = module.head()
    points = module.ours(problem, 0)
    torch.manual_seed(0)
    model = problem.model().double()
    given = {"weight_decay": problem.decay, "verbose": False}
    optimizer = compress(model, problem.loss, problem.train, floats_per_step=problem.d // 20, **given)
    for _ in points:
        optimizer.step(lambda: problem.loss(model(problem.train[0]), problem.train[1]))
    x = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(points[-1].x, x, rtol=1e-9, atol=1e-11)
    assert len(points) > 3
