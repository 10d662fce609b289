"""The command as a process: Ctrl-C at any moment, pipes that close, progress on a terminal of 80 columns."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.reference_problems import random_smoothness
from stepsize_solvers.numerics.progress import Progress
from stepsize_solvers.programs import Status
from stepsize_validation.cli.root import main

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "stepsize_validation.cli"]


def process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize(
    "command",
    [
        "plan {L} --epsilon2 1e-3 --initial-gap 1",
        "certify {D} {L} --sketch randk:3 --solve",
        "compare {L} --sketch randk:3",
    ],
)
def test_interrupt_of_one_solve_of_several(command: str, tmp_path: Path, capsys, monkeypatch) -> None:
    """A solver returns its best D so far; a command that makes several such calls ends."""
    names = {"L": str(tmp_path / "L.npy"), "D": str(tmp_path / "D.npy")}
    np.save(names["L"], random_smoothness(12, 1e3, 0))
    np.save(names["D"], 1e-3 * np.eye(12))
    run = Progress.run
    monkeypatch.setattr(Progress, "run", lambda self, method: (run(self, method), Status.INTERRUPTED)[1])
    assert main([*command.format(**names).split(), "--tol", "1e-17", "-q"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def _workers(pid: int) -> int:
    """Processes that have been started from this one, but for the tracker of shared resources."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_text() for child in children if Path(f"/proc/{child}").exists()]
    return sum("resource_tracker" not in line for line in lines)


@pytest.mark.parametrize("command", ["solve", "reproduce"])
def test_interrupt_while_other_processes_work(command: str, tmp_path) -> None:
    """A terminal sends Ctrl-C to all processes of the command; only the first says something, and none stays."""
    blocks = [random_smoothness(40, 20.0, seed) for seed in range(120)]
    sparse.save_npz(tmp_path / "L.npz", sparse.csr_array(sparse.block_diag(blocks)))
    solve = ["solve", str(tmp_path / "L.npz"), "--sketch", "randk:10%", "--jobs", "2"]
    arguments = solve if command == "solve" else ["reproduce", "a", "--quick", "-q", "-o", str(tmp_path / "out")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *arguments], start_new_session=True, **pipes) as started:
        while started.poll() is None and _workers(started.pid) < 2:
            time.sleep(0.05)
        time.sleep(0.3)  # some way into what they import
        os.killpg(started.pid, signal.SIGINT)
        out, err = started.communicate(timeout=60)
        assert (started.returncode, out, err) == (130, "", "interrupted\n")
        with pytest.raises(ProcessLookupError):
            for _ in range(100):  # the last of them may take a moment
                os.killpg(started.pid, 0)
                time.sleep(0.1)


@pytest.mark.parametrize("arguments", ["--help", "doctor", "doctor --json", "compare {L} --sketch randk:2"])
def test_a_closed_pipe_is_no_error(arguments: str, matrix: str) -> None:
    command = " ".join([*COMMAND, arguments.format(L=matrix)])
    # The reader is gone before the first line is written.
    done = process(["bash", "-o", "pipefail", "-c", f"{command} | true"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("sketch", "closed", "code"), [("randk:2", "<&- >&- 2>&-", 0), ("randk:9", "2>&-", 2)])
def test_streams_that_the_shell_closed(sketch: str, closed: str, code: int, matrix: str) -> None:
    """What is written to them is lost; an error does not end up among the results."""
    command = " ".join([*COMMAND, "solve", matrix, "--sketch", sketch, "-v", closed])
    done = process(["bash", "-c", command])
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_letters_that_an_encoding_lacks_are_written_by_their_numbers(matrix: str) -> None:
    command = [*COMMAND, "compare", matrix, "--sketch", "randk:2"]
    done = process(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, encoding="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u03b3 I" in done.stdout


def on_terminal(arguments: list[str], kind: str) -> str:
    """What a terminal of 80 columns shows of a command."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": kind}
    streams = {"stdin": follower, "stdout": follower, "stderr": follower}
    started = subprocess.Popen([*COMMAND, *arguments], **streams, env=environment)
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    assert started.wait() == 0
    return shown.decode()


def test_the_spinner_leaves_nothing_behind() -> None:
    """The spinner's line is erased before the table is printed; a terminal that cannot erase has no spinner."""
    words = ["solve-distributed", "--data", "breast_cancer", "--clients", "2", "--sketch", "randk:1"]
    words += ["--initial-gap", "1", "--delta-inf", "0", "--compare"]
    spinner, _, table = on_terminal(words, "xterm").rpartition("\x1b[2K")
    assert "D-det-CGD2, full D, independent seeds" in spinner, "there was a spinner with the name of the row"
    lines = table.splitlines()
    assert lines[0].startswith("Stepsizes for 2 clients"), "the spinner is erased before the table begins"
    assert len(lines) >= 10
    assert all(len(line) <= 80 and "\x1b" not in line for line in lines)
    assert on_terminal(words, "dumb").splitlines() == lines
