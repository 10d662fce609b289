"""The app of docs/flower.md prints what the page shows."""

from __future__ import annotations

from pathlib import Path

from integrations.processes import python
from shared.pages import alike, examples

PAGE = Path(__file__).parents[3] / "docs" / "flower.md"


def test_the_app_prints_what_is_shown(tmp_path: Path) -> None:
    [(code, shown)] = examples(PAGE, "py")
    (tmp_path / "app.py").write_text(code)
    done = python("app.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert alike(done.stdout, shown), done.stdout
