"""A budget of a month by the whole program: what a stranger does wrong with it is refused, and nothing is
charged."""

import json
import shutil
import subprocess

import pytest

from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.ledger.filters import epsilon_of
from udp_stream.ledgers.sqlite import open_sqlite_ledger

FLAGS = ("hat.slot=15m", "hat.resolution=7", "release.min_plates=4")
MONTH = "budget.period=30d"


def run(folder, *arguments, sets=()):
    words = [word for flag in sets for word in ("--set", flag)]
    done = run_verb([*arguments, *words], cwd=folder)
    assert b"Traceback" not in done.stderr, done.stderr
    said = " ".join((done.stdout + done.stderr).decode().split())
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, said)


def replay(folder, log, *sets, out="out"):
    return run(folder, "replay", log, "--ledger", "l", "--out", out, sets=(*FLAGS, *sets))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder, messages = tmp_path_factory.mktemp("logs"), fleet_log(clean=True)
    half = len(messages) // 2
    for name, part in (("first", messages[:half]), ("second", messages[half:])):
        (folder / f"{name}.ndjson").write_bytes(b"\n".join(part))
    return folder / "first.ndjson", folder / "second.ndjson"


@pytest.fixture
def begun(logs, tmp_path):
    """A folder with a month's ledger that a first run charged."""
    done = replay(tmp_path, logs[0], MONTH)
    assert done.returncode == 0, done.stderr
    return tmp_path


def charged(folder):
    with open_sqlite_ledger(folder / "l") as ledger:
        assert ledger.verify() == []
        return [
            (entry.release_id, entry.period, int(entry.charged.sum())) for entry in ledger.entries()
        ]


def test_a_month_that_began_days_ago_has_one_balance_and_is_let_out_by_the_day(begun, logs):
    """The recorded Monday is the 24th of its thirty days."""
    assert replay(begun, logs[1], MONTH, out="more").returncode == 0
    assert {period for _, period, nano in charged(begun) if nano} == {
        "30d from 2023-12-16T00:00:00+05:30 in rho"
    }
    (first, *_) = (begun / "out").read_text().splitlines()
    privacy = json.loads(first)["privacy"]
    assert (privacy["period"], privacy["period_epsilon"]) == ("30d", 10.0)
    assert privacy["day_epsilon"] == epsilon_of(1_539_278_763 // 30, 1e-6) < 2
    assert privacy["year_epsilon"] == epsilon_of(14 * 1_539_278_763, 1e-6) < 140
    told = run(begun, "ledger", "show", "--ledger", "l", sets=(*FLAGS, MONTH))
    (over,) = json.loads(told.stdout)["privacy"]["privacy_loss"]["over_time"]
    said = [over[name]["epsilon"] for name in ("an_even_day", "the_period", "any_365_days")]
    assert said == [privacy[name] for name in ("day_epsilon", "period_epsilon", "year_epsilon")]
    assert over["any_365_days"]["rho"] == pytest.approx(14 * over["the_period"]["rho"])


@pytest.mark.parametrize(
    "forgotten",
    [(), ("budget.period=7d",), ("budget.period=rolling 30d",), ("budget.period=lifetime",)],
)
def test_a_run_without_the_months_flag_is_refused_and_charges_nobody(begun, logs, forgotten):
    """Else a plate would have a day's budget beside the month's."""
    sets = forgotten
    if "lifetime" in "".join(forgotten):
        sets = (*forgotten, "release.mean=levy", "release.mean_epsilon=0.1", "release.cdf=off")
    before = charged(begun)
    refused = replay(begun, logs[1], *sets, out="more")
    assert refused.returncode == 5 and "30d from 2023-12-16T00:00:00+05:30" in refused.stderr
    assert charged(begun) == before


def test_a_ledger_of_days_changes_to_months_where_the_next_month_begins(logs, tmp_path):
    """The refusal names the time, and until then the old period goes on."""
    assert replay(tmp_path, logs[0]).returncode == 0
    before = charged(tmp_path)
    refused = replay(tmp_path, logs[1], MONTH, out="more")
    assert refused.returncode == 5 and "2024-01-14T18:30:00+00:00" in refused.stderr, refused.stderr
    assert charged(tmp_path) == before
    assert replay(tmp_path, logs[1], out="more").returncode == 0


@pytest.mark.parametrize("unit", ["30", "1m", "1M", "30days", "1month", "1.5d", "0d", "365000d"])
def test_a_unit_that_is_none_or_another_is_refused_before_a_ledger_is_made(logs, tmp_path, unit):
    refused = replay(tmp_path, logs[0], f"budget.period={unit}")
    assert refused.returncode == 3 and "budget.period" in refused.stderr, refused.stderr
    assert not (tmp_path / "l").exists() and not (tmp_path / "out").exists()


def test_a_backup_of_last_week_is_refused_and_charges_nobody(begun, logs):
    """It has forgotten what plates were charged of the month since."""
    shutil.copy(begun / "l", begun / "backup")
    assert replay(begun, logs[1], MONTH, out="more").returncode == 0
    (begun / "backup").rename(begun / "l")
    for log in ("l-wal", "l-shm"):
        (begun / log).unlink(missing_ok=True)
    before = charged(begun)
    refused = replay(begun, logs[1], MONTH, out="again")
    assert refused.returncode == 5 and "went back in time" in refused.stderr
    assert charged(begun) == before and not (begun / "again").exists()


def test_a_second_ledger_beside_the_months_key_is_refused(begun, logs):
    """With the same key it would give every plate a second budget of the month."""
    for name in begun.glob("l*"):
        if not name.name.startswith("l.key"):
            name.unlink()
    refused = replay(begun, logs[1], MONTH, out="more")
    assert refused.returncode == 5, refused.stderr
