"""Values of options, as types of argparse: each states what it expects, and argparse names the option."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn

from stepsize_opt.inputs import Structure, parse_structure
from stepsize_opt.methods import get_method


def _expected(what: str, text: str) -> NoReturn:
    msg = f"expected {what}, got {text!r}"
    raise argparse.ArgumentTypeError(msg)


def _number(text: str) -> float:
    """Return the number, or NaN, which no range contains."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive(text: str) -> float:
    """Return a finite positive number."""
    value = _number(text)
    return value if 0.0 < value < math.inf else _expected("a finite positive number", text)


def nonnegative(text: str) -> float:
    """Return a finite number of at least 0."""
    value = _number(text)
    return value if 0.0 <= value < math.inf else _expected("a finite number of at least 0", text)


def seconds(text: str) -> float:
    """Return a positive number of seconds."""
    value = _number(text)
    what = "a positive number of seconds (leave the option out for no limit)"
    return value if 0.0 < value < math.inf else _expected(what, text)


def whole(text: str) -> int:
    """Return a positive whole number."""
    return _whole(text) or _expected("a positive whole number", text)


def wholes(text: str) -> list[int]:
    """Return positive whole numbers with commas between them."""
    values = [_whole(part) for part in text.split(",")]
    return values if all(values) else _expected("positive whole numbers with commas between them", text)


def seed(text: str) -> int:
    """Return a whole number of at least 0, which a generator starts from."""
    return int(text) if text.isdecimal() else _expected("a whole number of at least 0", text)


def processes(text: str) -> int:
    """Return a number of processes, as joblib counts them."""
    number = _number(text)
    if not number.is_integer() or number == 0.0:
        _expected("a number of processes: 1 or more, or -1 for all cores", text)
    return int(number)


def names(text: str) -> tuple[str, ...]:
    """Return names with commas between them."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    return found or _expected("names with commas between them", text)


def method(text: str) -> str:
    """Return the name of a method as results carry it."""
    try:
        return get_method(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def structure(text: str) -> Structure:
    """Return the structure that a text names."""
    try:
        return parse_structure(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole(text: str) -> int:
    """Return the positive whole number, or 0."""
    try:
        return max(0, int(text))
    except ValueError:
        return 0
