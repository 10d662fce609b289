"""The text form of sketches, for command lines and files: ``parse_sketch`` reads what ``Sketch.text`` writes.

Each class says its form and reads it (``Sketch.form``, ``Sketch.parse``); here are the parts that they share.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import numpy as np

from stepsize_opt.inputs import whole_number
from stepsize_opt.sketches.base import FORMS, Sketch
from stepsize_solvers.programs import Vector

_BIASED = "depends on the gradient and is biased, so it is no sketch; Feedback sends top-k"
_NOT_LINEAR = "rounds entries and is not linear, so it is no sketch"
_NO_SKETCH = {"topk": _BIASED, "top": _BIASED, "sign": _BIASED, "qsgd": _NOT_LINEAR, "natural": _NOT_LINEAR}


def parse_sketch(text: str, d: int) -> Sketch:
    """The sketch of dimension ``d`` that ``text`` names, such as ``randk:8``; the inverse of ``Sketch.text``.

    Upper and lower case count the same, and blanks around the parts do not count.  The class of each sketch says what
    its text looks like; sketches that hold arrays (finite, general diagonal) have none, their ``text`` describes them.
    Raises ValueError, naming the text, for an unknown form, a wrong number or sizes that do not add up to d;
    TypeError if ``text`` is not a string or ``d`` not a number.

    Examples
    --------
    >>> from stepsize_opt import parse_sketch
    >>> parse_sketch("randk:25%", 8)
    RandK(d=8, k=2)
    """
    if not isinstance(text, str):
        msg = f"a sketch's text must be a string such as 'randk:8', got {text!r}"
        raise TypeError(msg)
    size = whole_number("d", d)
    name, _, argument = text.strip().lower().partition(":")
    try:
        kind = _class_of(name.strip())
    except ValueError as error:
        msg = f"sketch {text!r}: {error}"
        raise ValueError(msg) from None
    try:
        return kind.parse(argument.strip(), size)
    except ValueError as error:
        msg = f"sketch {text!r}: {error}" + ("" if argument.strip() else f"; write it like {kind.form}")
        raise ValueError(msg) from None


def sketch_forms() -> str:
    """Examples of all forms, with commas between them."""
    return ", ".join(kind.form for kind in FORMS.values())


def _class_of(name: str) -> type[Sketch]:
    if "(" in name:
        msg = "this only describes a sketch and cannot be parsed; build it with its class, such as FiniteSketch"
        raise ValueError(msg)
    kind = FORMS.get(name)
    if kind is None:
        msg = f"unknown name {name!r}{_hint(name)}; the known forms are {sketch_forms()}"
        raise ValueError(msg)
    return kind


def _hint(name: str) -> str:
    """Return why a known compressor is no sketch, or the form that was probably meant."""
    reason = _NO_SKETCH.get(name.replace("-", ""))
    if reason:
        return f", which {reason} (see docs/faq.md)"
    meant = get_close_matches(name, FORMS, 1)
    return f" (did you mean {meant[0]!r}?)" if meant else ""


def number(what: str, text: str) -> float:
    """A number; the error says what it stands for."""
    try:
        return float(text)
    except ValueError:
        msg = f"{what} must be a number, got {text.strip()!r}"
        raise ValueError(msg) from None


def numbers(what: str, text: str) -> list[float]:
    """Numbers with commas between them."""
    return [number(what, part) for part in text.split(",")]


def one_or_each(what: str, text: str, d: int) -> list[float]:
    """d numbers with commas between them, or one that stands for all."""
    values = numbers(what, text)
    if len(values) not in (1, d):
        msg = f"{what} must be one number or d={d} numbers, got {len(values)}"
        raise ValueError(msg)
    return values * d if len(values) == 1 else values


def check_sizes(sizes: list[int], d: int) -> None:
    """Raise ValueError unless the layer sizes add up to d."""
    if sum(sizes) != d:
        msg = f"the layer sizes {', '.join(str(n) for n in sizes)} add up to {sum(sizes)}, but d={d}"
        raise ValueError(msg)


def shortest(values: Vector) -> Vector:
    """One value for all when they are equal."""
    return values[:1] if np.all(values == values[0]) else values


def join(values: Iterable[float]) -> str:
    """Numbers with commas between them, each with the fewest digits that read back as the same number."""
    return ",".join(repr(float(v)).removesuffix(".0") for v in values)


def counted(count: int, singular: str, plural: str) -> str:
    """A count with its noun."""
    return f"{count} {singular if count == 1 else plural}"
