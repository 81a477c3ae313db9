"""Processes of our program, forked from one that has imported it: each would spend a second of a processor on that.

They are processes like any others, with an id, a folder and a log of their own: to be killed, paused and waited for.
That the program starts by its command line is tested elsewhere (`tests/runtime`, `tests/integration/test_binding.py`).
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["streams.worker", "udp_stream.cli.commands.worker", "udp_stream.adapters.ledgers.redis.ledger"]
)
ONE_AT_A_TIME = threading.Lock()
"""Of two threads that ask `multiprocessing` how a process ended, one would be told nonsense."""
POLL_S = 0.02


class Forked:
    """A process that calls `main` of a module with these arguments; otherwise like `subprocess.Popen`."""

    def __init__(self, module: str, arguments: Sequence[object], said: Path, cwd: Path) -> None:
        """What it prints is added to the file `said`."""
        given = (module, [str(one) for one in arguments], str(said), str(cwd))
        self.returncode: int | None = None
        with ONE_AT_A_TIME:
            self._process = FORKS.Process(target=_run, args=given, daemon=True)
            self._process.start()
            assert self._process.pid is not None
            self.pid = self._process.pid
            self._held = os.pidfd_open(self.pid)  # never another process of that id

    def poll(self) -> int | None:
        """Its status, the signal's number negative, or None while it runs."""
        with ONE_AT_A_TIME:
            if self.returncode is None:
                self.returncode = self._process.exitcode
                if self.returncode is not None:
                    os.close(self._held)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status; subprocess.TimeoutExpired if it has none so many seconds from now."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended."""
        with ONE_AT_A_TIME:
            if self.returncode is None:
                try:
                    signal.pidfd_send_signal(self._held, number)
                except ProcessLookupError:
                    return

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(module: str, arguments: list[str], said: str, cwd: str) -> None:
    os.chdir(cwd)
    log = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = [module, *arguments]
    sys.exit(import_module(module).main(*arguments))
