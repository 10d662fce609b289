"""The other process of ``stepsize_solvers.process.call_within``: reads a request, writes the answer."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path


def main(request: Path, answer: Path) -> None:
    """Call the function in ``request``; what it returns or raises goes to ``answer``."""
    function, arguments = pickle.loads(request.read_bytes())
    try:
        value, error = function(*arguments), None
    except Exception as raised:  # whatever it is belongs to the caller
        value, error = None, raised
    answer.write_bytes(pickle.dumps((value, error)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
