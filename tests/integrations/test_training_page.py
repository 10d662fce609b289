"""Every block of docs/training.md runs, scripts with the command that the page names, and so do the examples."""

from __future__ import annotations

import importlib.util
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from integrations.processes import python
from shared.pages import alike, examples

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
    assert len(rest) == 1
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
    path = ROOT / "docs" / "training" / "full.csv"
    table = pd.read_csv(path, comment="#")
    methods = {*module.OURS, *module.BASELINES}
    assert tuple(table.columns) == module.Run._fields
    assert set(table["method"]) == methods
    assert len(table) == len(module.PROBLEMS) * len(methods) * len(module.SEEDS) * len(module.BUDGETS)


def test_the_study_runs_and_counts_its_bytes() -> None:
    module = study()
    module.BUDGETS, module.SEEDS, module.GRID, module.ADAM = (18,), (0,), (4.0,), (0.1,)
    problem = module.PROBLEMS["breast_cancer"](0)
    assert problem.d == 31
    runs, curves = module.runs_of("breast_cancer")
    assert len(runs) == len(curves) == len(module.OURS) + len(module.BASELINES)
    least = float(problem.value(torch.zeros(31, dtype=torch.float64), problem.train)) - problem.minimum()
    for run in runs:
        assert 0.0 <= run.loss < least, run
    # A triangle of FᵀF/n, 31×31, then a value, a quarter of an index, the residual, and two values of f in a pair.
    points = module.ours(problem, 2200.0, {})
    assert points[0].sent == 4 * 496 + 2 * (4 + 0.5 + 8) + 16
    assert module.baseline(problem, "PowerSGD rank 1", {"lr": 4.0, "momentum": 0.0}, 1.0)[0].sent == 4 * 31


PROCESS = """
import importlib.util, sys
import torch, torch.distributed as dist
path, rank, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
spec = importlib.util.spec_from_file_location("study", path)
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
problem = study.PROBLEMS["breast_cancer"](0)
out = {}
for name, options in study.OURS.items():
    points = study.train(problem, problem.model(), study.Workers(), 2200.0, options)
    out[name] = [(point.sent, point.x) for point in points]
torch.save(out, f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def test_four_threads_of_the_study_do_what_four_processes_do(tmp_path: Path) -> None:
    module = study()
    path = str(ROOT / "examples" / "torch" / "study.py")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda rank: python("-c", PROCESS, path, str(rank), str(tmp_path)), range(4)))
    assert all(one.returncode == 0 for one in done), "".join(one.stderr for one in done)
    problem, processes = module.PROBLEMS["breast_cancer"](0), torch.load(tmp_path / "0.pt")
    for name, options in module.OURS.items():
        threads = module.ours(problem, 2200.0, options)
        assert len(threads) > 5 and [one.sent for one in threads] == [sent for sent, _ in processes[name]], name
        for one, (_, x) in zip(threads, processes[name], strict=True):
            torch.testing.assert_close(one.x, x, rtol=1e-9, atol=1e-11)
