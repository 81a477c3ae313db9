"""The embedded runtime over whole logs: same bytes twice, order within the grace does not matter,
nothing is lost."""

import io
import json
import random
import re
from collections import Counter
from pathlib import Path

import jsonschema
import msgspec
import pytest

from tests.forms import PURE_ENV, long_but
from tests.gtfs import START_S, snapshot, vehicle
from tests.http_server import GTFS, ok, serving
from tests.mutations import facts, gtfs_answers, json_answers, ping
from tests.runtime.harness import CONFIG, fleet_log, frames_of, ledger_at, runtime_on
from tests.unit.test_http_source import source
from udp_stream.cli.report import print_summary
from udp_stream.pings.decode import PingDecoder
from udp_stream.pings.json import JSON
from udp_stream.pings.snapshots import GTFS_REALTIME
from udp_stream.release import record as release
from udp_stream.settings import load
from udp_stream.testing import SeededEntropy

SCHEMA = Path(__file__).parents[2] / "docs" / "release.schema.json"


def replay(messages, ledger, flags=CONFIG, entropy=None, reject=None, size=4096):
    out = io.BytesIO()
    with ledger_at(ledger, flags) as (opened, keys):
        summary = runtime_on(opened, keys, out, flags, entropy, reject).run(
            frames_of(messages, size)
        )
        assert opened.verify() == []
    return out.getvalue(), summary


def test_a_second_run_on_the_same_ledger_writes_the_same_bytes_and_charges_nothing(tmp_path):
    messages = fleet_log()
    first, _ = replay(messages, tmp_path / "ledger")
    with ledger_at(tmp_path / "ledger") as (ledger, _):
        before = [entry.charged.tolist() for entry in ledger.entries()]
    second, _ = replay(messages, tmp_path / "ledger")
    with ledger_at(tmp_path / "ledger") as (ledger, _):
        after = [entry.charged.tolist() for entry in ledger.entries()]
        assert list(ledger.unpublished()) == []
    assert first == second and before == after
    assert first.count(b'"status":"released"') > 10


class Killed(BaseException):
    """What nothing catches."""


def test_settings_are_noted_before_anything_is_charged_under_them(tmp_path, monkeypatch):
    name = f"policy:{load(None, CONFIG, PURE_ENV).policy.fingerprint()}"
    with ledger_at(tmp_path / "ledger") as (ledger, keys):

        def die(*_):
            assert name in ledger.meta()
            raise Killed

        monkeypatch.setattr(ledger, "admit", die)
        with pytest.raises(Killed):
            runtime_on(ledger, keys, io.BytesIO()).run(frames_of(fleet_log()))
    with ledger_at(tmp_path / "ledger") as (ledger, _):
        assert json.loads(ledger.meta()[name])["hat.slot"] == "15m"


def test_a_record_that_another_run_made_first_is_not_counted(tmp_path, monkeypatch):
    """It comes between this run's look at what stands and its own record. Only withheld ones may be
    the same bytes."""
    messages = fleet_log(hours=0.6)
    with ledger_at(tmp_path / "ledger") as (slow, keys):
        record, others, ours = slow.record, [], []

        def late(releases):
            if not others:
                others.append(replay(messages, tmp_path / "ledger")[1])
                ours.extend(release.Release.decode(payload).status for _, payload in releases)
            return record(releases)

        monkeypatch.setattr(slow, "record", late)
        summary = runtime_on(slow, keys, io.BytesIO()).run(frames_of(messages))
    assert others[0].hats == summary.hats and others[0].made == summary.hats.total()
    assert summary.made == sum(status.startswith("withheld") for status in ours) < len(ours)


def test_another_ledger_gives_other_noise_and_the_same_public_parts(tmp_path):
    messages, flags = fleet_log(), (*CONFIG, "release.mean=array-averaging")
    one, two = (replay(messages, tmp_path / name, flags)[0] for name in ("one", "two"))
    assert one != two
    public = [
        [(r.release_id, r.status, r.counts) for r in map(release.Release.decode, run.splitlines())]
        for run in (one, two)
    ]
    assert public[0] == public[1]


NOISY = {"mean": ("value_kmh", "interval95_kmh"), "variance": ("value_kmh2",), "cdf": ("values",)}
"""What noise was added to. Intervals are centred on the noisy mean."""


@pytest.mark.parametrize("mean", long_but(["optimal"], ["baseline", "array-averaging", "optimal"]))
def test_other_speeds_of_other_lengths_change_nothing_but_the_noisy_numbers(tmp_path, mean, capsys):
    """Statuses, counts, terms, charges, refusals, summary. One ping in three keeps its speed; a
    faulty log."""
    flags = (*CONFIG, f"release.mean={mean}")

    def exact(name, speeds):
        log = fleet_log()[:25_000]
        log = [speeds(at, message) for at, message in enumerate(log)]
        log = [
            *log[:9000],
            *(b"[%s]" % b", ".join(log[at : at + 50]) for at in range(9000, len(log), 50)),
        ]
        out, summary = replay(log, tmp_path / name, flags)
        print_summary(summary, load(None, flags, PURE_ENV))
        with ledger_at(tmp_path / name, flags) as (ledger, _):
            charges = {
                entry.release_id: sorted(entry.charged.tolist()) for entry in ledger.entries()
            }
        records = [json.loads(line) for line in out.splitlines()]
        for part, fields in NOISY.items():
            for record in records:
                for field in fields:
                    assert record[part] is None or record[part].pop(field) is not None
        return records, charges, summary, capsys.readouterr().err

    def redrawn(at, text):
        value = msgspec.json.decode(text).get("speed") if SPEED.search(text) else None
        accepted = isinstance(value, int | float) and 0 <= value <= 200
        return (
            SPEED.sub(b'"speed":%d.%s' % (at % 97, b"4" * (at % 40 + 1)), text)
            if accepted and at % 3
            else text
        )

    one, other = exact("one", lambda _, message: message), exact("other", redrawn)
    assert one == other
    assert (
        sum(record["status"] == "released" for record in one[0]) > 10
        and one[2].refused.total() > 50
    )


SPEED = re.compile(rb'"speed":[0-9.]+(?=[,}])')


def test_messages_shuffled_within_the_grace_give_the_same_releases(tmp_path):
    messages = fleet_log(clean=True)
    plain, _ = replay(messages, tmp_path / "plain", entropy=SeededEntropy(5))
    dice = random.Random(3)
    times = (
        PingDecoder(load(None, CONFIG, PURE_ENV).ping_rules, JSON)
        .decode(messages)[0]
        .time_ms.tolist()
    )
    order = sorted(range(len(messages)), key=lambda i: times[i] + dice.uniform(0, 60_000))
    assert order != sorted(order)
    shuffled, summary = replay(
        [messages[i] for i in order], tmp_path / "shuffled", entropy=SeededEntropy(5)
    )
    assert summary.refused == Counter()
    assert shuffled == plain


def test_every_hat_of_the_log_gets_one_record_that_fits_the_published_schema(tmp_path):
    messages = fleet_log()
    refused = []
    out, summary = replay(
        messages, tmp_path / "ledger", reject=lambda message, refusal: refused.append(refusal)
    )
    records = [json.loads(line) for line in out.splitlines()]
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    for record in records:
        validator.validate(record)
    ids = [record["release_id"] for record in records]
    assert len(ids) == len(set(ids)) == sum(summary.hats.values())
    counted = sum(record["counts"]["samples"] for record in records)
    assert counted == summary.pings - summary.repeats
    assert summary.pings + sum(summary.refused.values()) == len(messages)
    assert Counter(str(refusal.reason) for refusal in refused) == summary.refused
    assert {"missing_field", "not_json", "time_in_future", "zero_coordinates"} <= set(
        summary.refused
    )


def test_values_keep_to_the_contract(tmp_path):
    out, _ = replay(fleet_log(), tmp_path / "ledger")
    released = [r for r in map(release.Release.decode, out.splitlines()) if r.status == "released"]
    for record in released:
        assert record.mean is not None and record.cdf is not None and record.variance is not None
        assert 0 <= record.variance.value_kmh2 <= 65**2 / 4 and record.variance.epsilon <= 0.2
        assert (
            0
            <= record.mean.interval95_kmh[0]
            <= record.mean.value_kmh
            <= record.mean.interval95_kmh[1]
            <= 65
        )
        assert list(record.cdf.values) == sorted(record.cdf.values) and record.cdf.values[-1] == 1
        assert len(record.cdf.values) == len(record.cdf.edges_kmh)
        assert sum(record.cdf.budgets) == pytest.approx(record.cdf.epsilon)
        assert record.privacy.epsilon <= 0.9 + 1e-9 and record.privacy.period_epsilon == 8.0
        if (
            record.counts.admitted_plates == record.counts.plates
        ):  # who pays most for one may pay less for another
            each = record.mean.epsilon, record.cdf.epsilon, record.variance.epsilon
            assert max(each) <= record.privacy.epsilon and sum(each) == pytest.approx(0.9)
    assert max(record.privacy.epsilon for record in released) == pytest.approx(0.9)


def test_the_published_schema_is_the_types_schema():
    kinds = release.Release, release.Smoothed, release.Withdrawal, release.QueryResult
    for kind in kinds:
        name = release.schema_of(kind).split("/")[1]
        assert json.loads(SCHEMA.with_name(f"{name}.schema.json").read_text()) == release.described(
            kind
        )


def test_no_record_names_a_plate(tmp_path):
    messages = fleet_log()
    plates = {msgspec.json.decode(m)["license_plate"] for m in fleet_log(clean=True)}
    out, _ = replay(messages, tmp_path / "ledger")
    assert not [plate for plate in plates if plate.encode() in out]
    assert not [plate for plate in plates if plate.encode() in (tmp_path / "ledger").read_bytes()]


@pytest.mark.parametrize(
    ("count", "reasons"), [(20_000, 8), pytest.param(100_000, 11, marks=pytest.mark.soak)]
)
def test_mutated_messages_leave_no_traceback(count, reasons, tmp_path):
    dice = random.Random(11)
    messages = fleet_log(hours=0.6)
    mutated = []
    for i in range(count):
        message = bytearray(messages[i * len(messages) // count])
        for _ in range(dice.randint(0, 2)):
            at = dice.randrange(len(message)) if message else 0
            match dice.randrange(4):
                case 0:
                    message[at : at + 1] = bytes([dice.randrange(256)])
                case 1:
                    del message[at : at + dice.randint(1, 30)]
                case 2:
                    message[at:at] = bytes(dice.choice(messages)[: dice.randint(1, 40)])
                case 3:
                    message[at : at + 1] = dice.choice(
                        [b"9", b"-", b'"', b"{", b"null", b"e99", b"\xff"]
                    )
        mutated.append(bytes(message))
    _, summary = replay(mutated, tmp_path / "ledger")
    assert summary.pings + sum(summary.refused.values()) >= count
    assert summary.pings > 1_000 and len(summary.refused) >= reasons


KINDS = {
    "json": (json_answers, JSON, "application/json", "kmh"),
    "gtfs": (gtfs_answers, GTFS_REALTIME, GTFS, "mps"),
}
LAST = {
    "json": f"[{ping(1).replace('GJ05ZZ0001-0', 'LAST')}]".encode(),
    "gtfs": snapshot(vehicle("LAST", time_s=START_S), header_s=START_S + 10**6),
}

COUNTS = 2_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])


def is_whole(found):
    unreadable = {("not_json", "$"), ("not_gtfs_realtime", "$")}
    return bool(found) and not (len(found) == 1 and next(iter(found))[:2] in unreadable)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_of_mutated_answers_each_ping_is_handed_on_or_refused_for_its_reason(kind, count):
    answers, ping_format, content_type, unit = KINDS[kind]
    bodies = list(answers(4711, count))
    expected = [facts([body], ping_format) for body in bodies]
    whole = [one for one in expected if is_whole(one)]
    handed_on, last = Counter(), LAST[kind]
    with serving(*(ok(body, content_type) for body in (*bodies, last))) as running:
        live = source(running.url, every_s=0.0, timeout_s=30, max_bytes=10**8, unit=unit)
        for frame in live.messages():
            handed_on += facts(frame)
            if "LAST" in str(frame):
                break
        live.stop()
    whole.append(facts([last], ping_format))
    lost = set().union(*whole) - set(handed_on)
    assert not lost and not set(handed_on) - set().union(*whole)
    assert len(whole) <= len(bodies) and sum(len(one) == 3 for one in handed_on) > count / 50
