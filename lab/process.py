"""A real service as a child process: behind a guard, waited for in its own protocol, stopped in
bounded time.

No process may be left behind, not even when SIGKILL ends us. A "parent death signal" (prctl) is
sent when the *thread* that started the child ends, and needs code between fork and exec, which is
unsafe beside threads. So there is a guard beside each child: a small process that reads a pipe from
us. However we die, the system closes our end.

1. The child starts as a shell that waits for a line on its standard input before it becomes the
   service (`exec`, so the process id stays). If we die here, it reads the end of its input and is
   gone.
2. The guard starts and receives the process id.
3. The shell gets its line. From here on the guard answers for the child.
4. Once the child has ended and we have its status, the guard hears `done` and ends.

Child and guard have sessions of their own: Ctrl-C in a terminal reaches only us, and we stop them
in order. A process that we fork without exec holds our end of the pipe too, and has to end before
the guard acts.
"""

from __future__ import annotations

import inspect
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from udp_stream.base.errors import DependencyUnavailable

HOST = "127.0.0.1"
LOG = "service.log"
LOG_LINES = 12
ATTEMPTS = 5  # a port lost to another process five times in a row is no race any more
POLL_SECONDS = 0.02
KILL_SECONDS = 10.0  # a killed process is gone at once, unless the kernel holds it
# Below 32768, from where Linux takes the ports of outgoing connections: a client that keeps calling
# a stopped service on such a port meets itself in the end, and the service cannot come back. So is
# port + 10000, for Redis Cluster.
PORTS = range(12_000, 22_700)
PRIVATE_UMASK = (
    0o077  # a broker has raw pings on disk, and a Redis the ledger: only their owner may read them
)

_GATE = ("/bin/sh", "-c", 'read go && exec "$0" "$@" </dev/null')

_T = TypeVar("_T")


class PortTaken(DependencyUnavailable):
    """The port was free when we looked, and no longer when the service did."""


@dataclass(frozen=True)
class Program:
    """How to start a service, and how to know that it is there."""

    name: str
    command: tuple[str, ...]
    folder: Path  # its working directory; its output goes to `service.log` in it
    answers: Callable[
        [int], bool
    ]  # does the process of this id answer in its protocol? OSError counts as no
    disposable: bool = False  # the guard removes the folder if we die
    start_seconds: float = 60.0
    stop_seconds: float = 8.0

    @property
    def log(self) -> Path:
        return self.folder / LOG


@dataclass
class Child:
    """A process of ours and the guard that ends it if we do not."""

    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after these seconds; returns once the process is gone. Harmless
        if it is already."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)  # a paused process must wake up to hear it
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL; returns once the process is gone. Harmless if it is already."""
        self.process.kill()
        self.process.wait(KILL_SECONDS)
        assert self.guard.stdin is not None
        if not self.guard.stdin.closed:
            with suppress(BrokenPipeError):
                self.guard.stdin.write(b"done")
            with suppress(BrokenPipeError):
                self.guard.stdin.close()
        try:
            self.guard.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self.guard.kill()
            self.guard.wait(KILL_SECONDS)


@dataclass
class RunningService:
    """A service that has answered. Its address stays the same through restarts; `child` does not."""

    program: Program
    child: Child

    @property
    def folder(self) -> Path:
        return self.program.folder

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.child.process

    def alive(self) -> bool:
        """Whether the process is there, if only paused."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it in good order, or by force after `program.stop_seconds`; its data stays."""
        self.child.stop(self.program.stop_seconds)

    def kill(self) -> None:
        """End it as a crash would; its data stays as it was."""
        self.child.kill()

    def pause(self) -> None:
        """Pause it: it holds its connections and says nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port with the same data; returns once it
        answers."""
        self.stop()
        self.child = launch(self.program)

    def fail_if_ended(self) -> None:
        """Raise DependencyUnavailable if the process has ended by itself."""
        if not self.alive():
            raise _failure(self.program, f"ended with status {self.process.returncode}")


def launch(program: Program) -> Child:
    """Start it and wait until it answers. PortTaken if its port is in use, DependencyUnavailable if
    it ends or does not answer within `program.start_seconds`; nothing is left running then."""
    # The log has earlier starts in it, whose faults say nothing of this start.
    start = program.log.stat().st_size if program.log.exists() else 0
    child = _spawn(program)
    try:
        deadline = time.monotonic() + program.start_seconds
        while not _is_answering(program, child):
            if time.monotonic() > deadline:
                raise _failure(program, f"did not answer within {program.start_seconds:g} s")
            time.sleep(POLL_SECONDS)
    except BaseException as error:
        child.kill()
        if (
            isinstance(error, DependencyUnavailable)
            and b"ddress already in use" in program.log.read_bytes()[start:]
        ):
            raise PortTaken(str(error)) from error
        raise
    return child


def _spawn(program: Program) -> Child:
    with program.log.open("ab") as log:
        process = subprocess.Popen(
            [*_GATE, *program.command],
            cwd=program.folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=PRIVATE_UMASK,
        )
    assert process.stdin is not None
    with process.stdin as gate:
        own = [str(program.folder)] if program.disposable else []
        source = f"{inspect.getsource(_end_with_parent)}\n_end_with_parent()"
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", source, str(process.pid), *own],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        gate.write(b"go\n")
    return Child(process, guard)


def _end_with_parent() -> None:
    """The guard of PID [FOLDER], in an interpreter of its own, which has none of our packages.

    `done` and the end of its input: the parent has stopped the child itself. The end of input
    alone: the parent is dead, however it died, so the child is killed and its folder removed. A
    process is held by its pidfd where the system has those (Linux 5.3), so that a number given anew
    hits no stranger.
    """
    import os
    import select
    import shutil
    import signal
    import sys
    from contextlib import suppress

    pid = int(sys.argv[1])
    held = None
    with suppress(ProcessLookupError):
        held = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    if sys.stdin.buffer.read() == b"done":
        return
    with suppress(ProcessLookupError):
        if held == -1:
            os.kill(pid, signal.SIGKILL)
        elif held is not None:
            signal.pidfd_send_signal(held, signal.SIGKILL)
            select.select([held], [], [], 10)  # readable once the process has ended
    for folder in sys.argv[2:]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_answering(program: Program, child: Child) -> bool:
    with suppress(OSError):
        if program.answers(child.pid):
            return True
    if child.process.poll() is not None:
        raise _failure(program, f"ended with status {child.process.returncode} before it answered")
    return False


def _failure(program: Program, what: str) -> DependencyUnavailable:
    lines = program.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return DependencyUnavailable(
        "\n    ".join([f"{program.name} {what}; the end of its log:", *lines])
    )


def free_ports(number: int) -> list[int]:
    """Ports on 127.0.0.1 that nothing listens on at this moment, each with its port + 10000. They
    may be taken the next moment: start with `on_free_ports`."""
    found = list[int]()
    for port in random.sample(PORTS, len(PORTS)):
        if _is_free(port) and _is_free(port + 10_000):
            found.append(port)
        if len(found) == number:
            return found
    raise DependencyUnavailable(
        f"expected {number} free ports in {PORTS.start}-{PORTS.stop - 1} on {HOST}, found none"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def on_free_ports(number: int, start: Callable[[list[int]], _T]) -> _T:
    """Result of `start` on free ports; it tries others if another process takes them."""
    for _ in range(ATTEMPTS - 1):
        with suppress(PortTaken):
            return start(free_ports(number))
    # The last try stands alone, so that its PortTaken reaches the caller.
    return start(free_ports(number))


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A folder of our own, which is removed at the end."""
    with TemporaryDirectory(prefix=f"udp-stream-{name}-", ignore_cleanup_errors=True) as own:
        yield Path(own)
