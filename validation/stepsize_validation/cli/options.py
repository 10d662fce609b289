"""Options of the command line: what each reads and what its help says; a type names what it expects in its error."""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from stepsize_opt.goals import GOAL_NAMES
from stepsize_opt.inputs.checks import did_you_mean
from stepsize_opt.inputs.structures import STRUCTURE_FORMS, parse_structure
from stepsize_opt.methods import get_method, method_names

REG = 0.1  # λ of --data


class Parser(argparse.ArgumentParser):
    """Mistakes are one line, as those found later are; numbers such as -1e-9 are values, not options."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.I)

    def error(self, message: str) -> NoReturn:
        chosen = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        meant = did_you_mean(chosen[1], re.findall(r"[\w-]+", chosen[2])) if chosen else ""
        msg = f"{message.removeprefix('argument ')}{meant}; see '{self.prog} --help'"
        raise ValueError(msg)


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
    """Register a command: the first line of its function's docstring is its help, the rest its epilog."""
    line, _, more = inspect.cleandoc(run.__doc__ or "").partition("\n\n")
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=line[0].lower() + line[1:].rstrip("."), epilog=more
    )
    parser.set_defaults(run=run)
    return parser


def _expected(what: str, text: str) -> NoReturn:
    msg = f"expected {what}, got {text!r}"
    raise argparse.ArgumentTypeError(msg)


def _reader(what: str, read: Callable[[str], float], allowed: Callable[[float], bool]) -> Callable[[str], Any]:
    """Return a type of argparse for the numbers that are allowed."""

    def number(text: str) -> float:
        try:
            value = read(text)
        except ValueError:
            value = math.nan  # which no range contains
        return value if allowed(value) else _expected(what, text)

    return number


positive = _reader("a finite positive number", float, lambda value: 0.0 < value < math.inf)
nonnegative = _reader("a finite number of at least 0", float, lambda value: 0.0 <= value < math.inf)
whole = _reader("a positive whole number", int, lambda value: value >= 1)
seed = _reader("a whole number of at least 0", int, lambda value: value >= 0)
processes = _reader("a positive whole number, or -1 for all cores", int, lambda value: value >= 1 or value == -1)


def wholes(text: str) -> list[int]:
    """Return positive whole numbers with commas between them."""
    return [whole(part) for part in text.split(",")]


def names(text: str) -> tuple[str, ...]:
    """Return names with commas between them."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    return found or _expected("names with commas between them", text)


def _parsed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type of argparse from a function that raises ValueError."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


OPTIONS: dict[str, dict[str, Any]] = {
    "matrix": {"nargs": "?", "type": Path, "help": "smoothness matrix L: .npy, .npz, .csv or .mtx"},
    "--data": {"help": "take L of logistic regression on this data set instead"},
    "--reg": {"type": positive, "help": f"λ of the regulariser for --data (default: {REG})"},
    "--penalty": {
        "help": "regulariser for --data: nonconvex, the paper's, L = AᵀA/(4m) + 2λI (default), or ridge, (λ/2)‖x‖², "
        "L = AᵀA/(4m) + λI",
    },
    "--clients": {"type": whole, "help": "number of clients that share the rows of --data, in equal parts"},
    "--seed": {"type": seed, "help": "seed of the shuffle of the rows (default: 0)"},
    "--sketch": {"help": "for example randk:8, bernq:0.5, independent:0.2"},
    "--algorithm": {
        "type": _parsed(lambda text: get_method(text).name),
        "default": "det-CGD1",
        "help": f"{', '.join(method_names())} (default: det-CGD1)",
    },
    "--structure": {
        "type": _parsed(parse_structure),
        "default": parse_structure("full"),
        "help": f"{STRUCTURE_FORMS} (default: full)",
    },
    "--goal": {
        "choices": (*GOAL_NAMES, "convex"),
        "default": GOAL_NAMES[0],
        "help": "what is maximised: det D under the paper's condition; for H = 2D - T(D) and without the condition "
        "det H (descent), its least eigenvalue (euclidean) or the linear rate (linear); convex: with --momentum "
        f"(default: {GOAL_NAMES[0]})",
    },
    "--strong-convexity": {"help": "for --goal linear: a number μ > 0 or a file with M, M ⪯ ∇²f"},
    "--momentum": {"action": "store_true", "help": "a method that keeps two vectors; for --goal linear or convex"},
    "--epsilon2": {"type": positive, "help": "ε², the accuracy for the mean of E‖∇f‖²"},
    "--accuracy": {"type": positive, "help": "the accuracy for E f − f*, of the goals linear and convex"},
    "--initial-gap": {"type": nonnegative, "help": "Δ⁰ = f(x⁰) − f^inf"},
    "--initial-distance": {"type": positive, "help": "‖x⁰ − x*‖, for --goal convex"},
    "--delta-inf": {"type": nonnegative, "help": "Δ^inf = f^inf − (1/n)Σfᵢ^inf; found with --data"},
    "--iterations": {"type": whole, "help": "K, if fixed; otherwise the smallest is found"},
    "--solver": {"default": "auto", "help": "auto, or a name from 'stepsize-opt doctor'"},
    "--tol": {"type": positive, "default": 1e-6, "help": "certified gap asked for (default: 1e-6)"},
    "--time-limit": {"type": positive, "help": "seconds for building, compiling and solving"},
    "--output": {"type": Path, "help": "write D with its summary (.npz, .json) or alone (.npy, .csv)"},
    "--figure": {"type": Path, "help": "also draw a figure (.png, .pdf, .svg)"},
    "--json": {"action": "store_true", "help": "print JSON instead of a table"},
    "--verbose": {"action": "store_true", "help": "print the solver's progress on standard error"},
    "--quiet": {"action": "store_true", "help": "print nothing but errors"},
}
_SHORT = {"--output": ["-o"], "--verbose": ["-v"], "--quiet": ["-q"]}
MATRIX = ("matrix", "--data", "--reg", "--penalty")
SOLVER = ("--solver", "--tol", "--time-limit")
ROUNDS = ("--epsilon2", "--accuracy", "--initial-gap", "--initial-distance")


def add(parser: argparse.ArgumentParser, *options: str, **settings: Any) -> None:
    """Add options of ``OPTIONS``, with other settings where a command needs them."""
    for name in options:
        parser.add_argument(*_SHORT.get(name, []), name, **{**OPTIONS[name], **settings})


def values(args: argparse.Namespace, *options: str) -> dict[str, Any]:
    """Return what options were given, by their names in the library."""
    return {name: getattr(args, name) for name in map(_python_name, options)}


def _python_name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


_OPTION = {_python_name(option): option for option in OPTIONS}
_ASSIGNED = re.compile(rf"\b({'|'.join(_OPTION)})=(?:'([\w-]+)'|True\b)")
# Names that are no English words as well.
_DISTINCT = re.compile(rf"\b({'|'.join(name for name in _OPTION if re.search('[_0-9]', name))})\b")


def with_option_names(message: str) -> str:
    """Return a message of the library with --initial-gap for initial_gap, and --goal linear for goal='linear'."""
    message = _ASSIGNED.sub(lambda found: f"{_OPTION[found[1]]} {found[2] or ''}".rstrip(), message)
    return _DISTINCT.sub(lambda found: _OPTION[found[1]], message)
