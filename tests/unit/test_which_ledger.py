"""The sentence that names a run's ledger: where it is, whether it is new, and since when it holds what."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from udp_stream.ledger.port import Admission, Progress
from udp_stream.ledgers.opening import begin_run, ledger_place, ledger_sentence
from udp_stream.ledgers.sqlite import MemoryLedger
from udp_stream.settings import load
from udp_stream.windows.tables import SlotGrid

SLOTS = SlotGrid(3600, ZoneInfo("Asia/Kolkata"))
FIRST, LATEST = "87608c4d2ffffff-1704673800-3600", "87608c4d2ffffff-1704713400-3600"
MADE = {"made": "2026-11-20T09:12:44Z"}


def test_a_file_is_named_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("city.ledger")
    for name in ("city.ledger", "sqlite:city.ledger", "./city.ledger", "link", f"{tmp_path}/city.ledger"):
        assert ledger_place(name) == f"{tmp_path.resolve()}/city.ledger"


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


def test_the_sentence_says_what_is_known():
    """Older ledgers do not say when they were made, and ids of others tell no slot, or none that there is."""
    first, latest = "the first of the slot 2024-01-08T06:00:00+05:30", "2024-01-08T17:00:00+05:30"
    for oldest, newest, told in (
        (FIRST, LATEST, f", {first}, the latest of {latest}"),
        (FIRST, "hat", f", {first}"),
        ("hat", LATEST, f", the latest of the slot {latest}"),
        ("hat", f"{'8' * 15}-{'9' * 30}-60", ""),
    ):
        assert ledger_sentence("/l", {}, Progress(118, 118, oldest, newest), SLOTS) == f"ledger /l: 118 HATs{told}"


def test_many_other_settings_are_one_warning(capsys):
    ledger, settings = MemoryLedger(), load(None, (), {})
    for name in "abcde":
        ledger.note(f"policy:{name}", f'{{"speed.unit": "{name}"}}')
    assert len(begin_run(settings.ledger, ledger, settings)) == 5
    assert capsys.readouterr().err.endswith(", new\n")  # it holds no HAT yet: nothing keeps a record
    hat = Admission(FIRST, members=np.array([0]), charges=np.array([3]), min_admitted=1, terms=b"")
    ledger.admit("May", 3, [b"a"], [hat])
    assert len(begin_run(settings.ledger, ledger, settings)) == 5
    (_, warning) = capsys.readouterr().err.splitlines()
    assert warning.startswith("udp-stream: warning")
    assert warning.endswith("; and 2 more): these HATs keep their records")
