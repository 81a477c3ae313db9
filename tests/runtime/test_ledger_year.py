"""A year of 300 buses, archived every month: bytes, memory and budgets."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.forms import long_but, soaked
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.archive import archive, latest_day, open_archive
from udp_stream.ledgers.sqlite import open_sqlite_ledger

NEW_YEAR = datetime(2025, 1, 1, tzinfo=UTC)
BUSES, CELLS, SLOTS = 300, 55, 24  # a day of Surat has 1,300 HATs, of 2.5 kB each
BUDGET = 10**9


def charge_a_day(ledger, day, dice):
    plates = [b"%016d" % bus for bus in range(BUSES)]
    period = f"1d from {day.isoformat()}"
    for hour in range(SLOTS):
        start = int(day.timestamp()) + 3600 * hour
        hats = [
            Admission(f"{0x87608C400FFFFFF + 0x1000000 * cell:015x}-{start}-3600", members, np.full(40, BUDGET // 200),
                      4, dice.bytes(60))
            for cell in range(CELLS) for members in [np.sort(dice.choice(BUSES, 40, replace=False))]
        ]  # fmt: skip
        ledger.admit(period, BUDGET, plates, hats)
        ids = [hat.release_id for hat in hats]
        ledger.record([(id_, dice.bytes(1500)) for id_ in ids])
        ledger.published(ids)


def peak_kb():
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("days", [*long_but([], [36]), *soaked([366])])
def test_archived_monthly_a_ledger_stays_small_and_adds_up(days, tmp_path):
    Path("/proc/self/clear_refs").write_text(
        "5"
    )  # the peak begins anew: other tests of this process had theirs
    before_kb = peak_kb()
    dice, path, count, sizes = np.random.default_rng(3), tmp_path / "ledger", 0, []
    with open_sqlite_ledger(path) as ledger:
        for number in range(days):
            day = NEW_YEAR + timedelta(days=number)
            charge_a_day(ledger, day, dice)
            count += CELLS * SLOTS
            if day.day == 4:
                before = latest_day(ledger, day + timedelta(days=1)).replace(day=1)
                if number > 4:
                    archive(ledger, int(before.timestamp()), tmp_path / f"before-{before:%Y-%m}")
                    sizes.append(path.stat().st_size / 1e6)
                assert ledger.progress().admitted == ledger.progress().recorded == count
        assert ledger.verify() == []
        held = sum(1 for _ in ledger.newest())
    assert sizes and max(sizes) < 20 and path.stat().st_size < 150e6
    for file in tmp_path.glob("before-*"):
        with open_archive(file) as found:
            held += found.progress().admitted
    assert held == count
    assert peak_kb() - before_kb < 100e3
