"""The pages and docstrings of PyTorch and Flower: what they show is printed, and the study counts as processes do."""

from __future__ import annotations

import doctest
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from integrations.processes import python
from shared.pages import alike, examples

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "stepsize_opt" / name for name in ("torch", "flower")]
MODULES = [path for package in PACKAGES for path in sorted(package.glob("*.py")) if ">>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_docstring_examples(path: Path) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"stepsize_opt.{path.parent.name}.{path.stem}"))
    assert tried and not failed


# The blocks of each page, with the arguments of Python that run the last one as the page says.
PAGES = {
    "training.md": ("-m torch.distributed.run --standalone --log-dir logs --nproc-per-node 2 app.py", 2),
    "flower.md": ("app.py", 1),
}


@pytest.mark.parametrize("name", PAGES)
def test_blocks_and_scripts_print_what_is_shown(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, count = PAGES[name]
    found = examples(ROOT / "docs" / name, "py|python")
    *rest, (script, shown) = sorted(found, key=lambda example: example[0].startswith("# file: ") or len(found) == 1)
    assert len(found) == count and shown
    for code, printed in rest:
        exec(compile(code, name, "exec"), {"__name__": "document"})
        assert alike(capsys.readouterr().out, printed)
    (tmp_path / "app.py").write_text(script)
    done = python(*command.split(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert alike(done.stdout, shown), done.stdout


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
