"""Every block of docs/training.md runs, scripts with the command that the page names, and so do the examples."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
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
    assert len(rest) >= 4
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


def test_the_digits_example(tmp_path: Path) -> None:
    out = shell(tmp_path, str(ROOT / "examples" / "torch" / "digits_head.py"), "--rounds", "3")
    for method in ("dense, D = L⁻¹", "dense SGD", "PowerSGD", "rand-k", "subspace"):
        assert re.search(rf"^{method} +\d+ rounds, \d+ kB: loss", out, re.M)
    assert (tmp_path / "digits_head.png").stat().st_size > 10_000
    curves = np.load(tmp_path / "digits_head.npz")
    for method, sent in (("rand-k", 16), ("subspace", 16), ("dense SGD", 320), ("dense, D = L⁻¹", 320)):
        rounds = int(curves[f"{method}, rounds"])
        assert curves[f"{method}, bytes"][-1] == 8 * sent * rounds
        assert curves[f"{method}, loss"][-1] < curves[f"{method}, loss"][0]
    # Rank 1 of a 10×32 matrix is 42 numbers, after two dense rounds.
    assert curves["PowerSGD, bytes"][-1] == 8 * (2 * 320 + 42 * (int(curves["PowerSGD, rounds"]) - 2))


def test_the_network_example(tmp_path: Path) -> None:
    out = shell(tmp_path, str(ROOT / "examples" / "torch" / "network_margin.py"), "--rounds", "5")
    assert out.count("certified=False") >= 7
    assert "dense SGD, γ =" in out
