"""The adversary: all faults, in an order that follows from a seed; kills are aimed at requests of
the ledger."""

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.city import City
from tests.chaos.strangers import Strangers
from tests.chaos.workers import Worker, Workers

NEXT = rb"\r\n\$[0-9]+\r\n[^\r]+"
NEEDLES = {
    "admit": rb"}:unpublished" + NEXT + rb"}:admission:",
    "record": rb"}:unpublished" + NEXT + rb"}:release:",
}
"""Neighbouring keys of a call of the ledger, as no other call names them."""

CATCH_S = 4.0
PEACE_S = 3.0
RETURN_S = 3.0
"""A paused worker returns at most so long after its session is over."""
KILLS_S = 60.0
AGENDA = 0.2
"""How often the next of what is to happen in every round is tried."""


@dataclass(frozen=True)
class Caught:
    """A worker held in a call of the ledger: how to let the call go on, and how to lose it."""

    victim: Worker
    go_on: Callable[[], None]
    lose: Callable[[], None]


@dataclass
class Adversary:
    """Call `strike` as often as you like, then `leave_nothing_out`, then `relent`."""

    city: City
    workers: Workers
    strangers: Strangers
    dice: random.Random
    regulars: int
    done: Counter[str] = field(default_factory=Counter)
    _agenda: list[Callable[[], bool]] = field(default_factory=list)
    _copied: int | None = None
    _returns: list[threading.Timer] = field(default_factory=list)

    def __post_init__(self) -> None:
        """What is rare happens in every round all the same."""
        self._agenda = [
            self._change,
            self.stranger_on_a_ledger,
            self.stranger_with_a_key,
            self._change,
        ]

    @property
    def kills(self) -> int:
        return self.done["kill"] + self.done["ambush: killed"]

    def strike(self) -> None:
        if self._agenda and self.dice.random() < AGENDA:
            if self._agenda[0]():
                del self._agenda[0]
            return
        actions: dict[Callable[[], object], int] = {
            self.kill: 60, self.ambush_and_kill: 16, self.ambush_and_pause: 5, self.pause: 7, self.come_or_go: 7,
            self.cut_redis: 6, self.delay: 4, self.stall: 4, self.cut_broker: 5,
            self.restart_redis: 6, self.restart_broker: 3, self._change: 3,
            self.stranger_on_a_ledger: 3, self.stranger_with_a_key: 3,
        }  # fmt: skip
        (action,) = self.dice.choices(list(actions), list(actions.values()))
        action()

    def leave_nothing_out(self, kills: int) -> None:
        """What every round has, and had not yet, and so many kills of workers that serve."""
        for change in self._agenda:
            change()
        deadline = time.monotonic() + KILLS_S
        while self.kills < kills and time.monotonic() < deadline:
            self.kill()

    def rest(self) -> None:
        """A moment of peace; mostly until something is achieved that can then be ruined."""
        time.sleep(self.dice.choice((0.1, 0.3, 1.0)) * self.dice.uniform(0.5, 1.5))
        before, deadline = (
            self.city.recorded(),
            time.monotonic() + self.dice.choice((0.0, PEACE_S, PEACE_S)),
        )
        while self.city.recorded() == before and time.monotonic() < deadline:
            time.sleep(0.05)

    def relent(self) -> None:
        for timer in self._returns:
            timer.join()
        for place in self.city.places:
            place.link.delay(0)
            place.link.set_down(False)
            place.link.trap = None
        self.city.ground.broker_link.delay(0)
        for number, place in enumerate(self.city.places):
            self.workers.want(place, number < self.regulars)

    def _victim(self) -> Worker | None:
        deadline = time.monotonic() + CATCH_S
        while not (up := self.workers.serving()):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return self.dice.choice(up)

    def kill(self) -> None:
        victim = self._victim()
        if victim is not None and self.workers.kill(victim):
            self.done["kill"] += 1

    def pause(self) -> None:
        """SIGSTOP until its session is over and another has its place; then let it return."""
        victim = self._victim()
        if victim is not None and not any(place.paused for place in self.city.places):
            self.workers.pause(victim)
            self.done["pause"] += 1
            self._later(self._away_s(), lambda: self.workers.resume(victim))

    def _away_s(self) -> float:
        return self.city.session_s + self.dice.uniform(0.5, RETURN_S)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, what)
        timer.start()
        self._returns.append(timer)

    def ambush(self, call: str, answered: bool) -> "Caught | None":
        """Hold the first worker that makes this call of the ledger; None if none came."""
        proxy, links = self.city.ground.proxy, [place.link for place in self.city.places]
        trap = proxy.set_trap(links, NEEDLES[call], answered)
        caught = trap.caught.wait(CATCH_S)
        for link in links:
            link.trap = None
        if not caught:
            proxy.call(trap.open)
            self.done["ambush: nobody came"] += 1
            return None
        victim = next(place for place in self.city.places if place.link is trap.link)
        return Caught(victim, lambda: proxy.call(trap.open), lambda: proxy.call(trap.drop))

    def _ambush(self) -> "Caught | None":
        return self.ambush(self.dice.choice(("admit", "record")), self.dice.random() < 0.5)

    def ambush_and_kill(self) -> None:
        """SIGKILL in a call of the ledger; what was held still arrives, or does not."""
        if caught := self._ambush():
            self.workers.kill(caught.victim)
            self.done["ambush: killed"] += 1
            self.dice.choice((caught.go_on, caught.lose))()

    def ambush_and_pause(self) -> None:
        """SIGSTOP in a call of the ledger until another has its place; then the call and the worker
        go on."""
        if caught := self._ambush():
            self.workers.pause(caught.victim)
            self.done["ambush: paused"] += 1
            self._later(
                self._away_s(), lambda: (caught.go_on(), self.workers.resume(caught.victim))
            )

    def come_or_go(self) -> None:
        guests = self.city.places[self.regulars :]
        if guests:
            guest = self.dice.choice(guests)
            self.workers.want(guest, not guest.wanted)
            self.done["guest comes" if guest.wanted else "guest leaves"] += 1

    def cut_redis(self) -> None:
        """One worker's connections to Redis end, and sometimes it gets no new ones for a while."""
        link = self.dice.choice(self.city.places).link
        link.set_down(True)
        self._later(self.dice.choice((0.0, 0.2, 2.0)), lambda: link.set_down(False))
        self.done["redis cut"] += 1

    def cut_broker(self) -> None:
        link = self.city.ground.broker_link
        link.set_down(True)
        self._later(self.dice.choice((0.0, 0.2, 2.0)), lambda: link.set_down(False))
        self.done["broker cut"] += 1

    def delay(self) -> None:
        link = self.dice.choice(
            [*(place.link for place in self.city.places), self.city.ground.broker_link]
        )
        link.delay(self.dice.choice((0.02, 0.1, 0.3)))
        self._later(self.dice.uniform(1, 4), lambda: link.delay(0))
        self.done["delay"] += 1

    def stall(self) -> None:
        link = self.dice.choice(
            [*(place.link for place in self.city.places), self.city.ground.broker_link]
        )
        link.stall(self.dice.uniform(0.5, self.city.session_s + RETURN_S))
        self.done["stall"] += 1

    def restart_redis(self) -> None:
        self._restart("redis", self.city.ground.store.master)

    def restart_broker(self) -> None:
        self._restart("broker", self.city.ground.kafka)

    def _restart(self, name: str, service) -> None:
        way = self.dice.choice(("kill", "stop", "pause"))
        if way == "pause":
            service.pause()
            time.sleep(self.dice.uniform(0.5, 3))
            service.resume()
        else:
            service.kill() if way == "kill" else service.stop()
            time.sleep(self.dice.uniform(0, 1.5))
            service.restart()
        self.done[f"{name}: {way}"] += 1

    def stranger_on_a_ledger(self) -> bool:
        return self._stranger("another ledger", self.strangers.on_another_ledger)

    def stranger_with_a_key(self) -> bool:
        made_before = self.dice.random() < 0.5
        name = "another key" if made_before else "no key"
        return self._stranger(name, lambda: self.strangers.with_another_key(made_before))

    def _stranger(self, name: str, comes: Callable[[], None]) -> bool:
        """Once the deployment has a ledger: before that the stranger's would be the deployment's."""
        if self.strangers.crowded or not self.city.recorded():
            return False
        if self.dice.random() < 0.3:
            hit = [self.workers.kill(place) for place in self.city.places if place.serving]
            self.done["kill"] += sum(hit)
        comes()
        self.done[f"stranger with {name}"] += 1
        return True

    def _change(self) -> bool:
        """What can be done to the data: a failover where there is a replica, else a set-back."""
        return self.set_back() if self.city.ground.store.replica is None else self.fail_over()

    def set_back(self) -> bool:
        """An older copy of the ledger takes its place; older, once something was published since."""
        if self._copied is None:
            return self._copy()
        deadline = time.monotonic() + CATCH_S
        while self.city.marked() <= self._copied:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        self._set_back()
        return True

    @property
    def _copy_folder(self) -> Path:
        return self.city.folder / "ledger.copy"

    def _copy(self) -> bool:
        """Only of a ledger that holds something already, so that all workers know it."""
        if not self.city.recorded():
            return False
        self.city.ground.store.copy_to(self._copy_folder)
        deadline = time.monotonic() + CATCH_S
        while (recorded := self.city.recorded()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if recorded is None:
            return False
        self._copied = int(recorded)
        self.done["ledger copied"] += 1
        return True

    def _set_back(self) -> None:
        store, newest, refused = (
            self.city.ground.store,
            self.city.folder / "ledger.newest",
            self.workers.refused,
        )
        self.workers.older = True
        store.put_in_place(self._copy_folder, aside=newest)
        time.sleep(self.dice.uniform(1, 3))
        self.kill()  # who takes over looks at the ledger too
        time.sleep(self.dice.uniform(1, 3))
        with self.workers.stopped():
            store.put_in_place(
                newest, aside=self.city.folder / f"ledger.older-{self.done['ledger set back']}"
            )
            self.workers.older = False
        shutil.rmtree(newest)
        self._copied = None
        self.done["ledger set back"] += 1
        self.done["refused the older ledger"] += self.workers.refused - refused

    def fail_over(self) -> bool:
        self.city.ground.store.fail_over()
        self.done["failover"] += 1
        return True
