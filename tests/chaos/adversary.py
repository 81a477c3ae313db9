"""The adversary: everything that may go wrong goes wrong, in an order that follows from a seed.

Some of it is aimed: a worker is held at the very request of the ledger that charges or records, before Redis has seen
it or before the worker has heard the answer, and is killed there, or paused until another worker has its place.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.city import City
from tests.chaos.workers import Worker, Workers

NEXT = rb"\r\n\$[0-9]+\r\n[^\r]+"
NEEDLES = {"admit": rb"}:periods" + NEXT + rb"}:balance:", "record": rb"}:recorded" + NEXT + rb"}:unpublished"}
"""Neighbouring keys of a call of the ledger, as no other call names them."""

CATCH_S = 4.0
PEACE_S = 3.0
RETURN_S = 3.0
"""A paused worker returns at most so long after its session is over."""


@dataclass(frozen=True)
class Caught:
    """A worker held in a call of the ledger: how to let the call go on, and how to lose it."""

    victim: Worker
    go_on: Callable[[], None]
    lose: Callable[[], None]


@dataclass
class Adversary:
    """Call `strike` as often as you like, then `relent`."""

    city: City
    workers: Workers
    dice: random.Random
    regulars: int
    done: Counter[str] = field(default_factory=Counter)
    _returns: list[threading.Timer] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """SIGKILLs that hit a worker that was serving."""
        return self.done["kill"] + self.done["ambush: killed"]

    def strike(self) -> None:
        """Do one of the things, as soon as it makes sense."""
        actions: dict[Callable[[], None], int] = {
            self.kill: 60, self.ambush_and_kill: 16, self.ambush_and_pause: 5, self.pause: 7, self.come_or_go: 7,
            self.cut_redis: 6, self.delay: 4, self.stall: 4, self.cut_broker: 5,
            self.restart_redis: 6, self.restart_broker: 3,
        }  # fmt: skip
        (action,) = self.dice.choices(list(actions), list(actions.values()))
        action()

    def rest(self) -> None:
        """A moment of peace; mostly until something is achieved that can then be ruined."""
        time.sleep(self.dice.choice((0.1, 0.3, 1.0)) * self.dice.uniform(0.5, 1.5))
        before, deadline = self.city.recorded(), time.monotonic() + self.dice.choice((0.0, PEACE_S, PEACE_S))
        while self.city.recorded() == before and time.monotonic() < deadline:
            time.sleep(0.05)

    def relent(self) -> None:
        """Undo whatever would last, and let all regular workers work, no others."""
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
        """Some worker that is up, waited for a little."""
        deadline = time.monotonic() + CATCH_S
        while not (up := self.workers.serving()):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return self.dice.choice(up)

    def kill(self) -> None:
        """SIGKILL, while it does whatever it does."""
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
        """SIGSTOP in a call of the ledger until another has its place; then the call and the worker go on."""
        if caught := self._ambush():
            self.workers.pause(caught.victim)
            self.done["ambush: paused"] += 1
            self._later(self._away_s(), lambda: (caught.go_on(), self.workers.resume(caught.victim)))

    def come_or_go(self) -> None:
        """A guest joins or leaves: a rebalance."""
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
        """All workers' connections to the broker end."""
        link = self.city.ground.broker_link
        link.set_down(True)
        self._later(self.dice.choice((0.0, 0.2, 2.0)), lambda: link.set_down(False))
        self.done["broker cut"] += 1

    def delay(self) -> None:
        """Everything takes longer."""
        link = self.dice.choice([*(place.link for place in self.city.places), self.city.ground.broker_link])
        link.delay(self.dice.choice((0.02, 0.1, 0.3)))
        self._later(self.dice.uniform(1, 4), lambda: link.delay(0))
        self.done["delay"] += 1

    def stall(self) -> None:
        """Connections stay, and nothing gets through."""
        link = self.dice.choice([*(place.link for place in self.city.places), self.city.ground.broker_link])
        link.stall(self.dice.uniform(0.5, self.city.session_s + RETURN_S))
        self.done["stall"] += 1

    def restart_redis(self) -> None:
        """In good order, or by SIGKILL in the middle of whatever it does; sometimes it is merely mute for a while."""
        self._restart("redis", self.city.ground.redis)

    def restart_broker(self) -> None:
        """Likewise."""
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
