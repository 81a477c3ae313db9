"""Children are guarded, stopped in bounded time and waited for; answers of anything are read
without a crash."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import process as processes
from lab.process import PortTaken, Program, RunningService, launch
from udp_stream.base.errors import DependencyUnavailable

SLEEPER = ("sleep", "600")
STUBBORN = ("sh", "-c", "trap '' TERM; echo ready; exec sleep 600")  # what is ignored stays so
WAIT_SECONDS = 20


def program(folder: Path, *command: str, **more: object) -> Program:
    """A service that has answered as soon as its log says so, or at once."""
    return Program("Test", command, folder, lambda _: True, **more)


def says_ready(folder: Path) -> bool:
    return "ready" in (folder / processes.LOG).read_text()


@contextmanager
def running(started: Program) -> Iterator[RunningService]:
    service = RunningService(started, launch(started))
    try:
        yield service
    finally:
        service.kill()


def ends(process_id: int) -> bool:
    try:
        held = os.pidfd_open(process_id)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([held], [], [], WAIT_SECONDS)[0])
    finally:
        os.close(held)


def test_a_service_and_its_guard_are_gone_after_stop(tmp_path: Path) -> None:
    with running(program(tmp_path, *SLEEPER)) as service:
        assert service.alive()
        service.stop()
        assert service.process.returncode == -signal.SIGTERM
        assert service.child.guard.returncode == 0
        service.stop()  # and once more, harmless


def test_nobody_but_its_owner_may_read_what_a_service_keeps() -> None:
    """A broker's log is raw pings, and the ledger in a Redis is a movement profile."""
    before = os.umask(0o022)
    try:
        keeps = "mkdir data && echo pings > data/log && echo pings > log && echo ready && exec sleep 600"
        with processes.temporary_folder("kafka") as folder:
            kept = Program("Test", ("sh", "-c", keeps), folder, lambda _: says_ready(folder))
            with running(kept):
                assert [
                    path.stat().st_mode & 0o077 for path in (folder / "data", folder / "log")
                ] == [0, 0]
                assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = Program("Test", STUBBORN, tmp_path, lambda _: says_ready(tmp_path), stop_seconds=0.2)
    with running(stubborn) as service:
        service.stop()
        assert service.process.returncode == -signal.SIGKILL


def test_a_service_that_never_answers_is_given_up_and_not_left_running(tmp_path: Path) -> None:
    seen: list[int] = []

    def never(process_id: int) -> bool:
        seen.append(process_id)
        raise ConnectionRefusedError

    with pytest.raises(DependencyUnavailable, match=r"did not answer within 0\.2 s"):
        launch(Program("Test", SLEEPER, tmp_path, never, start_seconds=0.2))
    assert ends(seen[0])


def test_a_lost_port_is_tried_anew_elsewhere_and_not_for_ever(tmp_path: Path) -> None:
    taken = Program(
        "Test", ("sh", "-c", "echo bind: Address already in use; exit 1"), tmp_path, lambda _: False
    )
    tried: list[int] = []

    def start(ports: list[int]) -> RunningService:
        tried.extend(ports)
        return RunningService(taken, launch(taken))

    with pytest.raises(PortTaken):
        processes.on_free_ports(1, start)
    assert len(tried) == processes.ATTEMPTS
    assert processes.on_free_ports(2, lambda ports: len(set(ports))) == 2


PARENT = """
import sys
from pathlib import Path
from lab.process import Program, launch
folder = Path(sys.argv[1])
child = launch(Program("Test", ("sleep", "600"), folder, lambda _: True, disposable=True))
print(child.pid, child.guard.pid, flush=True)
sys.stdin.read()
"""


def test_no_child_and_no_folder_outlives_a_killed_parent(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], text=True, **pipes
    ) as parent:
        child, guard = map(int, parent.stdout.readline().split())
        parent.kill()
        assert ends(child)
        assert ends(guard)
        assert not folder.exists()
