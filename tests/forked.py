"""Processes of our program, forked from one that has imported it: a start would take a second of
processor time."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.reduction import DupFd
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "streams.worker", "udp_stream.ledgers.redis",
        *(f"udp_stream.cli.commands.{verb}" for verb in ("dashboard", "demo", "doctor")),
        *(f"udp_stream.cli.commands.{verb}" for verb in ("kafka", "ledger")),
        *(f"udp_stream.cli.commands.{verb}" for verb in ("plan", "replay", "run", "status")),
        # What these import only once they work.
        "udp_stream.dashboard.follow", "udp_stream.dashboard.server",
        "faust.app.router", "faust.assignor.partition_assignor", "faust.tables.manager", "faust.topics", "faust.worker",
        "kafka.admin", "numpy.ma", "tzfpy",
    ]
)  # fmt: skip
ONE_AT_A_TIME = threading.Lock()
"""Of two threads that ask `multiprocessing` how a process ended, one would be told nonsense."""
POLL_S = 0.02


class Forked:
    """A process that calls `main` of a module with these arguments; otherwise like
    `subprocess.Popen`."""

    def __init__(
        self, module: str, arguments: Sequence[object], streams: Sequence[int], cwd: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """`streams` are open files for its standard input, output and error; whoever opened them
        closes them."""
        environment = dict(os.environ if env is None else env)
        given = (
            module,
            [str(one) for one in arguments],
            [_Passed(one) for one in streams],
            str(cwd),
            environment,
        )
        self.returncode: int | None = None
        with ONE_AT_A_TIME:
            self._process = FORKS.Process(target=_run, args=given, daemon=True)
            self._process.start()
            assert self._process.pid is not None
            self.pid = self._process.pid
            self._held = _held(self.pid)

    def poll(self) -> int | None:
        with ONE_AT_A_TIME:
            if self.returncode is None:
                self.returncode = self._process.exitcode
                if self.returncode is not None and self._held is not None:
                    os.close(self._held)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        with ONE_AT_A_TIME:
            if self.returncode is None and self._held is not None:
                try:
                    signal.pidfd_send_signal(self._held, number)
                except ProcessLookupError:
                    return

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _held(pid: int) -> int | None:
    """A handle of this process, never of another one that is given its id later; None if it has
    ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def forked_to_log(module: str, arguments: Sequence[object], said: Path, cwd: Path) -> Forked:
    """A process that reads nothing, and adds to the file what it prints."""
    with Path(os.devnull).open("rb") as nothing, said.open("ab") as log:
        return Forked(module, arguments, [nothing.fileno(), log.fileno(), log.fileno()], cwd)


def run_forked(
    arguments: Sequence[object], *, cwd: Path, stdin: bytes | None = None, env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
    """The command line over pipes, from its start to its end, as `subprocess.run` would have it."""
    reads, feeds = os.pipe()
    (out, writes), (err, complains) = os.pipe(), os.pipe()
    process = Forked("tests.forked", arguments, [reads, writes, complains], cwd, env)
    for theirs in (reads, writes, complains):
        os.close(theirs)
    said: dict[int, bytes] = {}
    threads = [threading.Thread(target=_drain, args=(end, said)) for end in (out, err)]
    threads.append(threading.Thread(target=_feed, args=(feeds, stdin or b"")))
    for thread in threads:
        thread.start()
    try:
        process.wait(timeout)
    finally:
        process.kill()
        for thread in threads:
            thread.join()
    return subprocess.CompletedProcess(arguments, process.wait(), said[out], said[err])


def main(*arguments: str) -> int:
    from udp_stream.cli.main import main as program

    return program(arguments)


def _drain(end: int, said: dict[int, bytes]) -> None:
    with open(end, "rb") as file:
        said[end] = file.read()


def _feed(end: int, data: bytes) -> None:
    try:
        with open(end, "wb", buffering=0) as file:
            file.write(data)
    except BrokenPipeError:
        return


class _Passed:
    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self):
        return _received, (DupFd(self.number),)


def _received(duplicate) -> int:
    return duplicate.detach()


def _run(
    module: str, arguments: list[str], streams: list[int], cwd: str, env: dict[str, str]
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 (as the interpreter opens it)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a suite in the background ignores it, and so would we
    sys.argv = [module, *arguments]
    sys.exit(import_module(module).main(*arguments))
