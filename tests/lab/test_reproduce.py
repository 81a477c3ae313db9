"""`reproduce` as a user meets it: feeds from files, files written, sentences on trouble."""

import signal

import numpy as np
import pytest

from lab.reproduce import read_feed
from tests.runtime.harness import fleet_log
from udp_stream.cli import main as cli
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.settings import load
from udp_stream.windows.grid import Hexagons

HATS = ("hat.resolution=7", "hat.slot=1h")


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "fleet.ndjson"
    path.write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def once(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, " ".join(out.split()), " ".join(err.split())

    yield once
    signal.signal(signal.SIGTERM, before)


def test_a_feeds_hats_hold_every_accepted_ping_once(log):
    settings = load(None, HATS, {})
    feed = read_feed(str(log), "fleet", settings)
    pings, _ = PingDecoder(settings.ping_rules, JSON).decode(fleet_log(hours=0.6))
    distinct = {(int(p), int(t)) for p, t in zip(pings.plate, pings.time_ms, strict=True)}
    assert (feed.name, feed.recorded, feed.total) == ("fleet", True, len(distinct))
    assert (
        sum(hat.samples.size for hat in feed.hats)
        == sum(hat.counts.total for hat in feed.hats)
        == feed.total
    )
    assert all(0 <= hat.samples.min() <= hat.samples.max() <= 65 * 4096 for hat in feed.hats)
    starts, _ = settings.calendar.slots.place(pings.time_ms)
    cells = Hexagons(7).cells_of(pings.lat, pings.lon)
    assert len(feed.hats) == len(set(zip(starts.tolist(), cells.tolist(), strict=True)))
    assert feed.busiest_slot is not None and feed.busiest_slot.count.sum() <= feed.total
    assert (
        feed.whole is not None
        and feed.whole.hats == len(feed.hats)
        and feed.whole.count.sum() == feed.total
    )
    of_hats = np.split(feed.whole.count, feed.whole.hat_rows[1:-1])
    assert all(
        (one == hat.counts.by_plate).all() for one, hat in zip(of_hats, feed.hats, strict=True)
    )
    assert np.unique(feed.whole.plate).size == np.unique(pings.plate).size
    # the same truth as by hand, but for repeats, of which there are few
    assert feed.constant == pytest.approx(pings.speed.mean(), rel=0.02)


@pytest.mark.long
def test_reproduce_writes_figures_tables_and_findings_for_a_feed(run, log, tmp_path):
    feed = f"{log},speed.max_kmh=80"
    status, said, err = run(
        "reproduce", "worst-case", "--data", feed, "--repetitions", 5, "--out", "figures"
    )
    assert status == 0, err
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    names = {
        f"worst-case-{data}.{kind}" for data in ("ITMS-like", "fleet") for kind in ("png", "svg")
    }
    assert written == names | {"worst-case.csv", "worst-case-of-m.csv", "worst-case.txt"}
    assert (
        "statements agree" in said
        and "guess U/2 has 40 km/h" in said
        and "guess U/2 has 32.5 km/h" in said
    )
    assert "not private" in err


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["reproduce", "mean-itsm"], 2, "expected one of mean-itms"),
        (["reproduce", "worst-case", "--data", "none.ndjson"], 2, "none.ndjson cannot be read"),
        (
            ["reproduce", "worst-case", "--data", "fleet.ndjson,speed.max=80"],
            3,
            "did you mean speed.max_kmh?",
        ),
        (["reproduce", "worst-case", "--out", "fleet.ndjson"], 2, "expected a folder"),
    ],
)
def test_trouble_has_its_exit_status_and_a_sentence(arguments, status, sentence, run, log):
    found, out, err = run(*arguments)
    assert (found, out) == (status, "") and sentence in err
