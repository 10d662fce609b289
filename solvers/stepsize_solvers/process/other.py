"""A function call in another process, which is ended when its time is over.

Native code cannot be stopped from inside.  The other process is a fresh interpreter (a fork would copy locks that other
threads hold) which imports no more than the function needs, in particular not the user's own program.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_ANSWER = "stepsize_solvers.process.answer"  # run by its name; no module imports it


class ProcessEnded(RuntimeError):
    """The other process ended without an answer, by itself."""


def call_within(seconds: float, function: Callable[..., T], *arguments: object) -> T | None:
    """``function(*arguments)``, or None when the answer is not there after ``seconds``; all must be picklable.

    Raises what the function raises, and ProcessEnded when the process crashes.
    """
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request"), Path(folder, "answer")
        request.write_bytes(pickle.dumps((function, arguments)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        try:
            code = subprocess.run(
                [sys.executable, "-m", _ANSWER, str(request), str(answer)],
                timeout=max(seconds, 0.0),
                env=environment,
                cwd=folder,  # -m looks there first, and a folder of the user's may be named like a package of ours
                stdin=subprocess.DEVNULL,
                check=False,
                # Ctrl-C is for this process, which then ends the other one.
                start_new_session=True,
            ).returncode
        except subprocess.TimeoutExpired:
            return None
        if not answer.exists():
            msg = f"its process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
            raise ProcessEnded(msg)
        value, error = pickle.loads(answer.read_bytes())
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]
