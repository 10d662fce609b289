"""The examples on a page of the documentation, and what the page says that they print."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

_TIME = re.compile(r"\b[0-9.e-]+ s\b")


def blocks(path: Path, language: str) -> list[str]:
    """All blocks of a page that are marked with this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)


def examples(path: Path, language: str = "python") -> list[tuple[str, str]]:
    """Each block of code with the block marked ``text`` that follows it, empty where there is none."""
    pattern = rf"^```(?:{language})\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
    return re.findall(pattern, path.read_text(encoding="utf-8"), re.S | re.M)


def alike(printed: str, shown: str) -> bool:
    """The same words; numbers may differ in the last digits from one machine to the next, and times altogether."""
    words, expected = ([word.strip("()[],;:x") for word in _TIME.sub("", text).split()] for text in (printed, shown))
    return len(words) == len(expected) and all(map(_same, words, expected))


def _same(word: str, expected: str) -> bool:
    try:
        return math.isclose(float(word), float(expected), rel_tol=1e-3, abs_tol=1e-5)
    except ValueError:
        return word == expected


def cells(notebook: Path) -> list[tuple[str, str]]:
    """Return the code of each cell of a notebook with the text that it shows; pictures are left out."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            texts = [out.get("text", out.get("data", {}).get("text/plain", "")) for out in cell["outputs"]]
            shown = ["".join(text) for text in texts]
            found.append(("".join(cell["source"]), "\n".join(text for text in shown if "<Figure" not in text)))
    return found
