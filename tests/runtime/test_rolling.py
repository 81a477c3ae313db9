"""A rolling budget from one end to the other: replay, records, `ledger show`, `verify` and
`export`."""

import json
import os
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tests.contract.checks import worst_window
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.base.units import NANO
from udp_stream.ledger.rules import amounts, amounts_of, span_of
from udp_stream.ledgers.sqlite import open_sqlite_ledger
from udp_stream.release.record import Release

FLAGS = ("hat.slot=15m", "hat.resolution=7", "release.min_plates=4", "budget.accounting=pure",
         "budget.period=rolling 1h", "budget.epsilon=2")  # fmt: skip
FIXED = ("release.mean=baseline", "release.mean_epsilon=0.5")


def run(*arguments, cwd):
    return run_verb(arguments, cwd=cwd, env={**os.environ, "NO_COLOR": "1"})


def options(*flags):
    return [word for flag in flags for word in ("--set", flag)]


def worst_of(ledger, plate):
    spans = {
        (span_of(name).start, span_of(name).end): nano
        for name, nano in ledger.charged_by_period(plate).items()
    }
    return worst_window(
        {(int(start), int(end)): nano for (start, end), nano in spans.items()}, 3600
    )


@pytest.fixture(scope="module")
def charged(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("rolling")
    (tmp_path / "log.ndjson").write_bytes(b"\n".join(fleet_log(hours=2.5, clean=True)) + b"\n")
    done = run(
        "replay",
        "log.ndjson",
        *options(*FLAGS, *FIXED),
        "--ledger",
        "l",
        "--out",
        "out",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert b"at epsilon 2 per rolling 1h" in done.stderr.replace(b"\n", b" ")
    return tmp_path


def test_no_hour_costs_more_than_the_budget_and_a_second_run_nothing(charged):
    first = (charged / "out").read_bytes()
    assert {Release.decode(line).privacy.period for line in first.splitlines()} == {"rolling 1h"}
    with open_sqlite_ledger(charged / "l") as ledger:
        plates = {plate for entry in ledger.entries() for plate in entry.plates}
        worst = [worst_of(ledger, plate) for plate in plates]
        assert max(worst) <= 2 * NANO < max(worst) + NANO // 2, "the budget is used, and never more"
        assert max(sum(ledger.charged_by_period(plate).values()) for plate in plates) > 2 * NANO, (
            "and comes back"
        )
        before = ledger.progress()
    again = run(
        "replay",
        "log.ndjson",
        *options(*FLAGS, *FIXED),
        "--ledger",
        "l",
        "--out",
        "again",
        cwd=charged,
    )
    assert again.returncode == 0 and (charged / "again").read_bytes() == first
    with open_sqlite_ledger(charged / "l") as ledger:
        assert ledger.progress() == before


def test_show_tells_what_is_left_in_the_latest_window_and_export_what_is_promised(charged):
    plate = json.loads(fleet_log(clean=True)[0])["license_plate"]
    show = (
        run("ledger", "show", plate, "--ledger", "l", *options(*FLAGS), cwd=charged)
        .stdout.decode()
        .splitlines()
    )
    *spans, account = [line.split("\t") for line in show]
    assert len(spans) > 4 and all(span_of(name) and len(rest) == 1 for name, *rest in spans)
    name, latest, left, budget, most = account
    assert (name, budget) == ("rolling 1h", "of 2")
    assert float(latest.split()[1]) + float(left.split()[1]) == pytest.approx(2)
    assert float(latest.split()[1]) <= float(most.split()[2]) <= 2
    stated = json.loads(
        run("ledger", "export", "--ledger", "l", *options(*FLAGS), cwd=charged).stdout
    )
    loss = stated["privacy"]["privacy_loss"]
    assert "rolling 1h" in loss["privacy_unit"]
    assert loss["privacy_parameters"] == {"epsilon": 2.0}
    (period,) = loss["periods"]
    assert (period["period"], period["epsilon_guaranteed"]) == ("rolling 1h", 2.0)
    with open_sqlite_ledger(charged / "l") as ledger:
        plates = {plate for entry in ledger.entries() for plate in entry.plates}
        most = max(worst_of(ledger, plate) for plate in plates)
    assert period["epsilon_max_over_plates"] == most / NANO == pytest.approx(2, abs=0.5)


def test_verify_finds_a_window_that_was_overspent_by_hand(charged, tmp_path):
    charged = shutil.copytree(charged, tmp_path / "copy")
    sound = run("ledger", "verify", "--ledger", "l", *options(*FLAGS), cwd=charged)
    assert sound.returncode == 0 and b"none is over its budget" in sound.stdout
    with closing(sqlite3.connect(charged / "l")) as ledger:
        ledger.execute("DROP TRIGGER admissions_stand")
        query = "SELECT sequence, period, plates, charged FROM admissions ORDER BY sequence DESC"
        rows = ledger.execute(query).fetchall()
        sequence, period, plates, packed = next(row for row in rows if amounts(row[3]).any())
        each = amounts(packed)
        at = int(np.argmax(each))
        width = len(plates) // each.size
        plate = plates[at * width : (at + 1) * width]
        query = "SELECT spent FROM balances WHERE period = ? AND plate = ?"
        ((spent,),) = ledger.execute(query, (period, plate)).fetchall()
        more = 2 * NANO - spent  # the span alone stays within the budget: only its windows do not
        each[at] += more
        ledger.execute(
            "UPDATE admissions SET charged = ? WHERE sequence = ?", (amounts_of(each), sequence)
        )
        ledger.execute(
            "UPDATE balances SET spent = spent + ? WHERE period = ? AND plate = ?",
            (more, period, plate),
        )
        ledger.commit()
    found = run("ledger", "verify", "--ledger", "l", *options(*FLAGS), cwd=charged)
    assert found.returncode == 5
    assert f"puts plate {plate.hex()} over its budget {2 * NANO}".encode() in found.stdout
    assert b"expected" not in found.stdout, "each balance is the sum of its charges"


def test_what_is_left_in_a_slot_counts_all_that_its_window_has(charged):
    asked = *options(*FLAGS, *FIXED), "--ledger", "other", "--out", "o", "--json"
    done = run("replay", "log.ndjson", *asked, cwd=charged)
    slots = json.loads(done.stderr.splitlines()[-1])["by_slot"].values()
    left = [slot["budget_left"] for slot in slots]
    assert (
        all(0 <= share < 1 for share in left) and min(left) < 0.5
    )  # a slot alone leaves more than that
