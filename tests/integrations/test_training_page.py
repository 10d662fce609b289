"""Every block of docs/training.md runs, scripts with the command that the page names, and so do the examples."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

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


# The same draws and steps in numpy; and what leaves a worker has k numbers, compiled or not.
_AGAIN = """
from optax_train import *
key, z = jax.random.key(0), np.zeros(24)
for _ in range(100):
    key, now = jax.random.split(key)
    S = np.zeros(24)
    S[np.asarray(jax.random.choice(now, 24, (6,), replace=False))] = 24 / 6
    z -= np.asarray(D) @ (S * (F.T @ (F @ z - y) / 200))
np.testing.assert_allclose(x, z, rtol=1e-11)
np.testing.assert_allclose(x, np.linalg.lstsq(F, y)[0], rtol=1e-4)  # the minimum, which 100 steps come close to
compiled, _ = jax.jit(optimizer.update)(gradient, state)
plain, _ = optimizer.update(gradient, state)
np.testing.assert_allclose(compiled, plain, rtol=1e-11)
sketched = -np.linalg.solve(D, plain)
print(np.count_nonzero(np.abs(sketched) > 1e-9 * np.abs(sketched).max()), "numbers")
"""


def test_the_recipe_for_optax(tmp_path: Path) -> None:
    code, shown = FILES["optax_train.py"]
    (tmp_path / "optax_train.py").write_text(code)
    assert alike(shell(tmp_path, "-c", _AGAIN), shown + "6 numbers")


def study() -> Any:
    """The script of the study as a module."""
    spec = importlib.util.spec_from_file_location("study", ROOT / "examples" / "torch" / "study.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["full", "minibatches"])
def test_the_tables_of_the_study_are_those_of_its_files(name: str) -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    module = study()
    assert module.table(module.read(ROOT / "docs" / "training" / f"{name}.csv")) in page


def test_the_study_runs_and_counts_its_bytes() -> None:
    """With the threads of the study, on the smallest problem: the bytes of the plan, and losses that fall."""
    module = study()
    module.BUDGETS = (3,)
    problem = module.head()
    for name, options in module.OURS.items():
        points = module.ours(problem, seed=0, **options)
        (sent, _), (last, x) = points[0], points[-1]
        assert (last - sent) / (len(points) - 1) >= 4.0 * (problem.d // 20), name
        assert problem.score(x)[0] < problem.score(problem.start(0))[0]
    points = module.baseline(problem, "PowerSGD", {"lr": 4.0, "momentum": 0.0}, 0, None, 4.0 * 3 * problem.d)
    assert points[0][0] == 4.0 * (10 + 32 + 10)


def test_the_overhead_is_measured(tmp_path: Path) -> None:
    out = shell(tmp_path, str(ROOT / "examples" / "torch" / "overhead.py"), "--repeats", "1")
    assert len(re.findall(r"^\| (?:101770|997050) \| ", out, re.M)) == 12
