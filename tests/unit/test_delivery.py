"""Releases to sinks: every sink gets the same bytes."""

import io

import pytest

from tests.runtime.harness import CONFIG, fleet_log, frames_of, record_writer
from udp_stream.embedded.runtime import EmbeddedRuntime
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy


def runtime(*sinks, ledger=None):
    return EmbeddedRuntime(
        load(None, CONFIG, {}), MemoryLedger() if ledger is None else ledger, SeededEntropy(1),
        lambda plate: plate.encode().ljust(32), "test", lambda releases: [sink(releases) for sink in sinks],
    )  # fmt: skip


def test_sinks_behind_one_that_fails_get_the_slot_on_the_next_run_with_the_same_bytes():
    ledger, before, behind = MemoryLedger(), io.BytesIO(), io.BytesIO()

    def full(_releases):
        raise OSError("disk full")

    failing = runtime(record_writer(before), full, record_writer(behind), ledger=ledger)
    with pytest.raises(OSError, match="disk full"):
        failing.run(frames_of(fleet_log(hours=0.6)))
    assert failing.summary.unwritten and failing.summary.slots == 1 and behind.getvalue() == b""
    again = runtime(record_writer(behind), ledger=ledger)
    again.run(frames_of(fleet_log(hours=0.6)))
    assert before.getvalue() and behind.getvalue().startswith(before.getvalue())
    assert again.summary.made == behind.getvalue().count(b"\n") - before.getvalue().count(b"\n")
