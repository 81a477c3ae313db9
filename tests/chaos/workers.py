"""Worker processes, and the supervisor that an operator would have: whatever ends is started again."""

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.proxy import Link
from tests.forked import Forked, forked_to_log

SERVING = "worker of group"
RESTART_S = 0.3
REFUSED = 5
END_S = 14.0
"""A worker that is asked to end has ten seconds for it, and a loaded machine some more."""

LOOKS_BACK = re.compile("went back in time|lost writes|are gone|expected an admission")
"""What a worker says that has found its ledger to be an older one."""

Command = Callable[["Worker"], Sequence[object]]


@dataclass(eq=False)
class Worker:
    """A place for a worker: its processes come one after the other, over the same link to Redis."""

    name: str
    link: Link
    said: Path
    wanted: bool = False
    paused: bool = False
    process: Forked | None = None
    told_at: int = 0
    ended_s: float = 0.0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def told(self) -> str:
        return self.said.read_bytes()[self.told_at :].decode(errors="replace")

    @property
    def serving(self) -> bool:
        return self.alive and not self.paused and SERVING in self.told

    def send(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)


@dataclass
class Workers:
    """All of them, and the thread that looks after them; use it as a context manager."""

    command: Command
    places: list[Worker]
    folder: Path
    endings: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    older: bool = False
    refused: int = 0
    troubles: list[str] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Workers":
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        for place in self.places:
            place.send(signal.SIGKILL)
            if place.process is not None:
                place.process.wait()

    def want(self, place: Worker, wanted: bool) -> None:
        with self._lock:
            place.wanted = wanted
            if not wanted:
                self.resume(place)
                place.send(signal.SIGTERM)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        with self._lock:
            self._note_endings()
            for place in self.places:
                self.kill(place)
                if place.process is not None:
                    place.process.wait()
            self._note_endings()
            yield

    def kill(self, place: Worker) -> bool:
        with self._lock:
            hit = place.serving
            place.send(signal.SIGKILL)
            place.paused = False
            return hit

    def pause(self, place: Worker) -> None:
        with self._lock:
            place.paused = True
            place.send(signal.SIGSTOP)

    def resume(self, place: Worker) -> None:
        with self._lock:
            place.paused = False
            place.send(signal.SIGCONT)

    def serving(self) -> list[Worker]:
        return [place for place in self.places if place.serving]

    def end(self) -> list[str]:
        with self._lock:
            for place in self.places:
                place.wanted = False
                self.resume(place)
        troubles = [trouble for place in self.places if (trouble := self._end(place))]
        with self._lock:
            self._note_endings()
            return [*troubles, *self.troubles]

    def _end(self, place: Worker) -> str | None:
        process = place.process  # which the supervisor forgets once it has ended
        if process is None or process.poll() is not None:
            return None
        deadline = time.monotonic() + END_S
        while process.poll() is None and not place.serving and time.monotonic() < deadline:
            time.sleep(0.05)  # it cannot heed a signal yet
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(END_S)
        except subprocess.TimeoutExpired:
            return f"{place.name} did not end within {END_S:g} s of SIGTERM"
        return (
            None
            if status == 0
            else f"{place.name} ended with status {status} after SIGTERM:\n{place.told[-1500:]}"
        )

    def _supervise(self) -> None:
        while not self._over.wait(0.1):
            with self._lock:
                self._note_endings()
                for place in self.places:
                    if (
                        place.wanted
                        and place.process is None
                        and time.monotonic() - place.ended_s > RESTART_S
                    ):
                        self._start(place)

    def _note_endings(self) -> None:
        for place in self.places:
            if place.process is not None and place.process.poll() is not None:
                self.endings[_ending(place)] += 1
                if place.process.returncode == REFUSED:
                    self._note_refusal(place)
                place.process, place.ended_s, place.paused = None, time.monotonic(), False

    def _note_refusal(self, place: Worker) -> None:
        """A refusal is right while the ledger is an older one (`older`), in words that say so; else
        it is trouble."""
        if self.older and LOOKS_BACK.search(place.told):
            self.refused += 1
        else:
            self.troubles.append(
                f"{place.name} refused a ledger that is as it should be:\n{place.told[-1500:]}"
            )

    def _start(self, place: Worker) -> None:
        place.told_at = place.said.stat().st_size
        place.process = forked_to_log(
            "tests.chaos.broken_worker", self.command(place), place.said, self.folder
        )
        self.starts += 1


def _ending(place: Worker) -> str:
    """Its status, and the last sentence of ours without its numbers."""
    status = place.process.returncode
    if status == -signal.SIGKILL:
        return "killed"
    sentences = [
        json.loads(line)["message"]
        for line in place.told.splitlines()
        if line.startswith('{"time": ')
    ]
    last = sentences[-1] if sentences and status else ""
    return f"status {status}: {re.sub('[0-9]+', 'N', last)[:160]}" if last else f"status {status}"
