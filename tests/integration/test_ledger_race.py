"""Two real processes decide over the same balances at once."""

import json
import subprocess
import sys

import pytest

from tests.contract import racing_writer as racing
from tests.contract.checks import hour
from udp_stream.ledgers.redis import open_redis_ledger
from udp_stream.ledgers.sqlite import open_sqlite_ledger

HATS = 60


def writer(place, period, ours, hats):
    command = [
        sys.executable, "-m", "tests.contract.racing_writer", str(place), period, ours, str(hats)
    ]  # fmt: skip
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert child.stdout.readline() == "ready\n"
    return child


def answers(child):
    out, _ = child.communicate("", timeout=60)
    assert child.returncode == 0
    return json.loads(out)


@pytest.fixture(params=["redis", "sqlite"])
def store(request, tmp_path):
    if request.param == "sqlite":
        return tmp_path / "ledger", open_sqlite_ledger
    return request.getfixturevalue("redis_server").url, open_redis_ledger


@pytest.mark.parametrize("period", ["2024-01-08", hour("3h", 1)])
def test_two_processes_that_race_get_the_same_answers_and_no_plate_pays_more(store, period):
    place, opened = store
    children = [writer(place, period, ours, HATS) for ours in ("one", "other")]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    one, other = map(answers, children)
    assert one == other
    paid = [sum(charged[plate] for charged, _, _ in one.values()) for plate in (0, 1)]
    assert paid == [racing.BUDGET] * 2
    with opened(place) as ledger:
        assert ledger.balances(period, racing.PLATES).charged.tolist() == paid
        assert ledger.verify() == []
