"""What all tests share."""

import gc
import signal
from importlib import import_module
from typing import Any

import pytest
from hypothesis import settings

# Machines that run tests are shared: how long an example takes says nothing about the code.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")


FAULTS = ("compose", "once", "redis", "services")
"""Beginnings of the files whose services are killed, paused or their own; the other files share
theirs and wait."""

HALF = ("ledger_identity", "forecasts", "golden", "queries", "stream", "time")
"""Of these others, files that take half of the time: each half has services of its own."""


@pytest.fixture
def limits(monkeypatch):
    """`limits(module, NAME=value)` sets constants of a module, or of one by its name, for a test."""

    def set_to(module, **values):
        module = import_module(module) if isinstance(module, str) else module
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)

    return set_to


@pytest.fixture
def planted(limits):
    """`planted(owner, name=wrong)` plants a fault for a test, which its check has to find: a
    function of a module or a class is wrong."""
    return limits


@pytest.fixture
def registered(monkeypatch):
    """`registered(table, name, entry)` adds an entry to a table of ours for a test, or changes it."""
    return lambda table, name, entry: monkeypatch.setitem(table, name, entry)


@pytest.fixture
def few_rehearsals(limits):
    """A plan compares no other slots and budgets, and makes few cities up: a rehearsal takes its
    time."""
    limits("udp_stream.cli.plan_of_feed", SLOTS=())
    limits("udp_stream.cli.plan_of_promises", STANDARD=())
    limits("udp_stream.release.rehearsal", PAIRS_MAX=2)


@pytest.fixture
def streams_stay(limits):
    """The command line lets go of standard streams when it ends; in these tests it ends often."""
    cli = import_module("udp_stream.cli.main")
    limits(cli, use_standard_streams=lambda: None, let_go_of_stdout=lambda: None)
    limits(cli.signal, signal=lambda *_: None)


def pytest_sessionstart() -> None:
    """Nine thousand tests are objects that stay: to look for cycles among them is lost time."""
    gc.disable()
    # A shell that runs us in the background has us ignore it, and what we start would, too.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """While tests run, too: what is frozen is not looked at."""
    gc.freeze()
    gc.enable()


FIRST = ("days of chaos", "services", "services with faults", "slots of minutes")
"""What takes longest, nearly all of it waiting."""

SECOND = ("tests/protocol/", "tests/privacy/", "tests/simulation/")
"""What computes: beside those, so that no core is idle."""


MADE_ONCE = ("tests/unit/test_typical.py",)
"""What all of its tests are about takes long to make."""


def scope_of(nodeid: str) -> str:
    """Tests of one scope run in one process, one after the other: those that share services, one
    fault at a time."""
    if nodeid.startswith("tests/browser/"):
        return "browser"
    if nodeid.startswith(MADE_ONCE):
        return nodeid.partition("::")[0]
    if not nodeid.startswith("tests/integration/"):
        return nodeid
    name = nodeid.removeprefix("tests/integration/test_")
    if name.startswith("add_remove"):
        return "slots of minutes"
    if name.startswith("chaos"):
        return "days of chaos" if "a_day_of_chaos" in name else "chaos"
    if name.startswith(FAULTS):
        return "services with faults"
    return "services" if name.startswith(HALF) else "other services"


def turn_of(item: pytest.Item) -> int:
    scope = scope_of(item.nodeid)
    if scope in FIRST:
        return FIRST.index(scope)
    if scope != item.nodeid:
        return len(FIRST) + 1
    return len(FIRST) + (0 if scope.startswith(SECOND) or item.get_closest_marker("timeout") else 2)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable: within a scope they stay as they are."""
    items.sort(key=turn_of)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests in several processes, scope by scope in the order of their turns."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def _reschedule(self, node: Any) -> None:
            """One test at most waits behind another: with two, as it is by default, minutes pass
            behind a long one."""
            if self._pending_of(self.assigned_work[node]) < 2 or not self.workqueue:
                super()._reschedule(node)

    config.option.loadscopereorder = False  # else by the number of a scope's tests
    return Scheduling(config, log)
