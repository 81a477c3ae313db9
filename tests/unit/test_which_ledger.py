"""The sentence that names a run's ledger: where it is, whether it is new, and since when it holds
what."""

from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from udp_stream.ledger.port import Progress
from udp_stream.ledgers.opening import (
    has_secret_charges,
    ledger_and_keys,
    ledger_place,
    ledger_sentence,
    log_ledger,
    look_at,
    slots_of,
)
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.planning.policy import note_policy
from udp_stream.settings import LedgerSection, load
from udp_stream.windows.tables import SlotGrid

SLOTS = SlotGrid(3600, ZoneInfo("Asia/Kolkata"))
FIRST, LATEST = "87608c4d2ffffff-1704673800-3600", "87608c4d2ffffff-1704713400-3600"
HIDDEN = [
    "privacy.neighbours=add-remove", f"hat.domain={Path(__file__).parents[1] / 'domain.cells'}", "pings.interval=10s",
]  # fmt: skip
MADE = {"made": "2026-11-20T09:12:44Z"}


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://ledger:6379/0", "ledger:6379/0"),
        ("redis://ledger", "ledger:6379/0"),
        ("redis://user:secret@ledger:6380/3", "ledger:6380/3"),
        ("rediss://:sec@ret@ledger/3", "ledger:6379/3"),
        ("redis://ledger:1?db=4&password=sec@ret", "ledger:1/4"),
        ("redis://[::1]:7000/1", "[::1]:7000/1"),
        ("redis://:secret@[::1]", "[::1]:6379/0"),
        ("redis+cluster://:secret@node:7000", "node:7000/0"),
        ("unix://user:secret@/run/redis.sock?db=2", "/run/redis.sock/2"),
        ("redis://:secret@[oops", "redis://..."),
    ],
)
def test_a_redis_is_named_by_host_port_and_database_and_by_no_secret(url, place):
    assert ledger_place(url) == place


def test_a_ledger_is_new_until_a_hat_is_charged_for():
    assert ledger_sentence("/l", MADE, Progress(0, 0, None, None), SLOTS) == "ledger /l, new"
    assert ledger_sentence("/l", MADE, Progress(1, 0, FIRST, FIRST), SLOTS) == (
        "ledger /l, made 2026-11-20T09:12:44Z: 1 HAT, the first of the slot 2024-01-08T06:00:00+05:30, "
        "the latest of 2024-01-08T06:00:00+05:30"
    )


def test_slots_are_told_in_the_zone_that_the_ledger_notes_where_it_notes_one():
    ours, ledger = load(None, [], {}), MemoryLedger()
    assert slots_of(ledger, ours).iso(0).endswith("+05:30")
    note_policy(ledger, load(None, ["hat.timezone=America/Chicago"], {}).policy)
    assert slots_of(ledger, ours).iso(0) == "1969-12-31T18:00:00-06:00"
    for note in (
        "no JSON",
        '{"hat.slot": "1h"}',
        '{"hat.timezone": "No/Zone"}',
        '{"hat.timezone": "../etc"}',
    ):
        (other := MemoryLedger()).note("policy:5eed", note)
        assert slots_of(other, ours).iso(0).endswith("+05:30")


@pytest.mark.parametrize("hides", [False, True])
def test_a_ledger_whose_charges_are_secret_says_so_from_its_first_run_on(tmp_path, capsys, hides):
    ours, here = (
        load(None, HIDDEN if hides else [], {}),
        LedgerSection(url=f"{tmp_path}/city.ledger"),
    )
    with ledger_and_keys(here) as (ledger, _):
        log_ledger(here, ledger, ours)
        assert ("secret" in capsys.readouterr().err) == hides
        note_policy(ledger, ours.policy)
        assert has_secret_charges(ledger.meta()) == hides
        log_ledger(here, ledger, load(None, [], {}))  # as where --config was forgotten
        assert ("secret" in capsys.readouterr().err) == hides
    assert ("secret" in look_at(here).said) == hides
