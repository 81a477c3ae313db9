"""Outlives its parent for a moment, to end the parent's child: run as `python -I -S services_guard.py PID [FOLDER]`.

Its standard input is a pipe whose other end only the parent holds. `done` and the end of input: the parent has stopped
the child itself, nothing is left to do. The end of input alone: the parent is dead, however it died, so the child is
killed and the folder, which was to live as long as the child, removed.

A process is held by its pidfd where the system has those (Linux 5.3), so that a number given anew hits no stranger.
"""

import os
import select
import shutil
import signal
import sys

DONE = b"done"
KILL_SECONDS = 10


def guard(pid: int, folders: list[str]) -> None:
    """Wait for the end of standard input, then do what is said above."""
    held = _hold(pid)
    if sys.stdin.buffer.read() == DONE:
        return
    if held is not None:
        _kill(pid, held)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _hold(pid: int) -> int | None:
    """A pidfd; -1 where there are none; None if the process is gone already."""
    if not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _kill(pid: int, held: int) -> None:
    try:
        if held < 0:
            os.kill(pid, signal.SIGKILL)
            return
        signal.pidfd_send_signal(held, signal.SIGKILL)
    except ProcessLookupError:
        return
    select.select([held], [], [], KILL_SECONDS)  # readable once the process has ended


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2:])
