"""The text form of sketches, for command lines and files: ``parse_sketch`` reads what ``Sketch.text`` writes.

=================================  =====================================================================
text                               sketch
=================================  =====================================================================
``identity``                       ``Identity(d)``
``randk:8``, ``randk:25%``         ``RandK(d, 8)``; a percentage p gives k = max(1, round(d·p/100))
``bernq:0.5``                      ``BernQ(0.5, d)``, one coin for the whole vector
``bernq:0.5@3,4``                  ``BernQ(0.5, [3, 4])``, one coin for each layer
``bernq:0.5,0.25@3,4``             ``BernQ([0.5, 0.25], [3, 4])``
``independent:0.2``                ``IndependentSampling`` with all d probabilities equal
``independent:0.1,0.2,0.3``        ``IndependentSampling([0.1, 0.2, 0.3])``
``gaussian:4``                     ``Gaussian(d, 4)``
``layers:3=randk:1;4=bernq:0.5``   ``LayerWise([RandK(3, 1), BernQ(0.5, 4)])``
=================================  =====================================================================

Finite and general diagonal sketches hold arrays and have no such form; their ``text`` only describes them.
"""

from __future__ import annotations

from collections.abc import Callable

from stepsize_opt.inputs import whole_number
from stepsize_opt.sketches.laws import BernQ, Gaussian, Identity, IndependentSampling, LayerWise, RandK, Sketch

__all__ = ["parse_sketch"]


def parse_sketch(text: str, d: int) -> Sketch:
    """The sketch of dimension ``d`` that ``text`` names (forms above); the inverse of ``Sketch.text``.

    Upper and lower case count the same, and blanks around the parts do not count.
    Raises ValueError, naming the text, for an unknown form, a wrong number or sizes that do not add up to d;
    TypeError if ``text`` is not a string or ``d`` not a number.
    """
    if not isinstance(text, str):
        msg = f"a sketch's text must be a string such as 'randk:8', got {text!r}"
        raise TypeError(msg)
    size = whole_number("d", d)
    name, _, argument = text.strip().lower().partition(":")
    try:
        return _parser(name.strip())(argument.strip(), size)
    except ValueError as error:
        msg = f"sketch {text!r}: {error}"
        raise ValueError(msg) from None


def _parser(name: str) -> Callable[[str, int], Sketch]:
    if name in _FORMS:
        return _FORMS[name][1]
    if name.startswith(("finite(", "diagonal(")):
        msg = "this only describes a sketch and cannot be parsed; build it with FiniteSketch or DiagonalSketch"
        raise ValueError(msg)
    msg = f"unknown name {name!r}; the known forms are {', '.join(form for form, _ in _FORMS.values())}"
    raise ValueError(msg)


def _identity(argument: str, d: int) -> Sketch:
    if argument:
        msg = f"identity takes nothing after it, got {argument!r}"
        raise ValueError(msg)
    return Identity(d)


def _randk(argument: str, d: int) -> Sketch:
    if not argument.endswith("%"):
        return RandK(d, whole_number("k", _number("k", argument), high=d))
    percent = _number("the percentage", argument[:-1])
    if not 0.0 < percent <= 100.0:
        msg = f"the percentage must be in (0, 100], got {percent:g}"
        raise ValueError(msg)
    return RandK(d, max(1, round(d * percent / 100.0)))


def _bernq(argument: str, d: int) -> Sketch:
    q, at, sizes = argument.partition("@")
    if not at:
        return BernQ(_numbers("q", q), d)
    layers = [whole_number("a layer size", n) for n in _numbers("a layer size", sizes)]
    _check_sizes(layers, d)
    return BernQ(_numbers("q", q), layers)


def _independent(argument: str, d: int) -> Sketch:
    p = _numbers("p", argument)
    if len(p) not in (1, d):
        msg = f"p must be one number or d={d} numbers, got {len(p)}"
        raise ValueError(msg)
    return IndependentSampling(p * d if len(p) == 1 else p)


def _gaussian(argument: str, d: int) -> Sketch:
    return Gaussian(d, whole_number("k", _number("k", argument), high=d))


def _layers(argument: str, d: int) -> Sketch:
    sizes: list[int] = []
    sketches: list[Sketch] = []
    for part in argument.split(";"):
        size, equals, text = part.partition("=")
        if not equals:
            msg = f"each layer must read size=sketch, got {part!r}"
            raise ValueError(msg)
        sizes.append(whole_number("a layer size", _number("a layer size", size)))
        sketches.append(parse_sketch(text, sizes[-1]))
    _check_sizes(sizes, d)
    return LayerWise(sketches)


# Name: an example of the form, and what reads the text after the colon.
_FORMS: dict[str, tuple[str, Callable[[str, int], Sketch]]] = {
    "identity": ("identity", _identity),
    "randk": ("randk:8 or randk:25%", _randk),
    "bernq": ("bernq:0.5 or bernq:0.5,0.25@3,4", _bernq),
    "independent": ("independent:0.2", _independent),
    "gaussian": ("gaussian:4", _gaussian),
    "layers": ("layers:3=randk:1;4=bernq:0.5", _layers),
}


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        msg = f"{what} must be a number, got {text.strip()!r}"
        raise ValueError(msg) from None


def _numbers(what: str, text: str) -> list[float]:
    return [_number(what, part) for part in text.split(",")]


def _check_sizes(sizes: list[int], d: int) -> None:
    if sum(sizes) != d:
        msg = f"the layer sizes {', '.join(str(n) for n in sizes)} add up to {sum(sizes)}, but d={d}"
        raise ValueError(msg)
