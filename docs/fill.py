"""Write every table of the docs and of the README from stored results.

    python docs/fill.py                  fill the blocks and draw the figures (make docs-figures)
    python docs/fill.py --check          exit with 1 where a block differs from its stored results
    python docs/fill.py --store FOLDER   store what ``stepsize-opt reproduce`` left in a folder
    python docs/fill.py --store-demo     run the demo of the first page and store its table
    python docs/fill.py --store-momentum run the example of momentum on five data sets, store its tables

A page has blocks ``<!-- numbers: NAME -->`` … ``<!-- end -->``, on lines of their own or inside a line (not at its
beginning, where Markdown would take the line for HTML); the function of that name in ``blocks.py`` returns the
text between them.  The first line of each stored file is its stamp: the command that made it, version, commit, machine
and date (``stepsize_validation.origin``).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import blocks
import pandas as pd

from stepsize_validation import cli
from stepsize_validation.origin import origin

DOCS = Path(__file__).resolve().parent
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("**/*.md"))]
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->)(\n?).*?(<!-- end -->)", re.S)
# What is kept of the tables of an experiment.
_PANEL = ("data", "d", "λ", "split", "method", "k")
_FINAL = ("final f, paper", "final f, ours")
STORED = {
    "savings": ("data", "variant", "goal", "best of the paper", "predicted", "observed", *_FINAL),
    "verdicts": ("bounds", "holds", "undecided", "violated", "diverged"),
    "runs": ("data", "variant", "method", "goal", "efficiency", "theory", "euclidean", "excess", "verdict"),
    "factors": ("data", "sketch", "factor", "feasible", "verdict"),
    "margins": ("rows per coordinate", "margin, 95 %", "data", "sketch"),
    "figure": ("data", "d", "k", "method", "ours", "floats", "excess", "bound"),
    "conditions": ("data", "d", "λ", "coordinates", "L", "shuffled", "label"),
    "floats": (*_PANEL, "0.01", "0.0001", "1e-06", "setup", "guarantee", "stepsize"),
}


def filled(page: Path) -> str:
    """Return the text of a page with its blocks filled."""

    def fill(found: re.Match[str]) -> str:
        begin, name, line, end = found.groups()
        return f"{begin}{line}{blocks.BLOCKS[name]()}{line}{end}"

    return BLOCK.sub(fill, page.read_text(encoding="utf-8"))


def different() -> Iterator[Path]:
    """Return the pages whose blocks are not those of the stored results."""
    for page in PAGES:
        if filled(page) != page.read_text(encoding="utf-8"):
            yield page


def store(folder: Path) -> None:
    """Keep the tables of all experiments below a folder, each with the commands that made it."""
    found: dict[str, list[pd.DataFrame]] = {}
    heads: dict[str, list[str]] = {}
    for path in sorted(folder.glob("**/tables/*_*.csv")):
        experiment, _, name = path.stem.partition("_")
        if name in STORED:
            table = pd.read_csv(path, comment="#").assign(experiment=experiment)
            columns = [column for column in ("experiment", *STORED[name]) if column in table]
            found.setdefault(name, []).append(table[columns])
            heads.setdefault(name, []).append(path.read_text(encoding="utf-8").partition("\n")[0])
    for name, parts in found.items():
        text = pd.concat(parts).to_csv(index=False, float_format="%.6g")
        blocks.stored(name).write_text("\n".join([*heads[name], text]), encoding="utf-8")


def store_demo() -> None:
    """Run the demo on a1a and keep the guarantee, the gradients and the gap of each stepsize."""
    command = "stepsize-opt demo --data a1a --reg 0.001 --iterations 1000 --seeds 8 --json"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main(command.split()[1:])
    columns = ["method", "stepsize", "rate", "rounds", "share_of_limit", "mean_squared_gradient", "final_gap"]
    text = pd.DataFrame(json.loads(out.getvalue())["rows"])[columns].to_csv(index=False, float_format="%.6g")
    blocks.stored("demo").write_text(f"{origin(command)}\n{text}", encoding="utf-8")


def store_momentum() -> None:
    """Run the example of momentum on data and keep what it prints."""
    names = ("breast_cancer", "australian_scale", "phishing", "a1a", "mushrooms")
    script = DOCS / "examples" / "momentum_on_data.py"
    done = subprocess.run([sys.executable, str(script), *names], stdout=subprocess.PIPE, text=True, check=True)
    head = origin(f"python docs/examples/{script.name} {' '.join(names)}")
    (DOCS / "results" / "momentum.txt").write_text(f"{head}\n{done.stdout}", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for; return the exit code."""
    if arguments[:1] == ["--store"]:
        store(Path(arguments[1]))
        return 0
    if arguments == ["--store-demo"]:
        store_demo()
        return 0
    if arguments == ["--store-momentum"]:
        store_momentum()
        return 0
    changed = list(different())
    if arguments == ["--check"]:
        print(*(f"{page.name} differs from its stored results: make docs-figures" for page in changed), sep="\n")
        return int(bool(changed))
    for page in changed:
        page.write_text(filled(page), encoding="utf-8")
    blocks.draw()
    print(*(f"wrote {page.relative_to(DOCS.parent)}" for page in changed), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
