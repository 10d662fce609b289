"""Tables of classes by name, for what users write as text."""

from __future__ import annotations

from typing import TypeVar

Kind = TypeVar("Kind")


def enter_class(table: dict[str, type[Kind]], name: str, cls: type[Kind]) -> None:
    """Enter a class under its name, in lower case; a class that is defined again, as in a notebook, replaces itself.

    Raises TypeError for a name that belongs to another class.
    """
    known = table.get(name.lower(), cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        msg = f"the name {name!r} belongs to {known.__module__}.{known.__qualname__}; give {cls.__qualname__} another"
        raise TypeError(msg)
    table[name.lower()] = cls
