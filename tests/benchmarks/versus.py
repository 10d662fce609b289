"""The tables of docs/versus.md from the results of ``stepsize-opt reproduce f``, and its files, docs/versus/:

PYTHONPATH=tests python -m benchmarks.versus results/reproduce
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "versus"
COLUMNS = (
    "feedback, eigenbasis",
    "feedback, rank 4",
    "momentum subspace",
    "EF21, top-k",
    "PowerSGD, rank 1",
    "Nesterov",
    "L-BFGS",
)


def write(results: Path) -> None:
    """Print the tables, copy the figure and write every setting as floats.csv."""
    tables = json.loads((results / "tables.json").read_text(encoding="utf-8"))["tables"]["f"]
    shown = pd.DataFrame(tables["shown"]).set_index("method").loc[list(COLUMNS)].T
    print(shown.rename_axis("data").to_markdown(colalign=("left", *["right"] * len(COLUMNS))))
    ranking = pd.DataFrame(tables["ranking"]).head(10)
    print("\n" + ranking.to_markdown(index=False, floatfmt=".3g", missingval="—"))
    FOLDER.mkdir(exist_ok=True)
    pd.DataFrame(tables["floats"]).drop(columns="ours").to_csv(FOLDER / "floats.csv", index=False, float_format="%.6g")
    shutil.copy(results / "figures" / "f_floats.png", FOLDER / "floats.png")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
