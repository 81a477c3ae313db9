"""Withdrawals and archived times on a real broker: workers publish marks, and take old pings for
late."""

from streams.processors import ERROR
from tests.integration.deployment import worker
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.ledger.ids import Id
from udp_stream.release.record import Release, Withdrawal


def slots_of(ids):
    return sorted({Id.of(id_).slot for id_ in ids})


def test_marks_reach_the_topic_once_with_the_next_slot_and_stay_when_a_worker_dies(city):
    messages = fleet_log(clean=True)
    here, half = city(messages, shards=2), len(messages) * 6 // 10
    expected, _ = here.embedded()
    here.set_idle("1h")  # no tick: it would tell the time of today
    here.feed(messages[:half])
    first, second, *_ = slots_of(expected)
    early = {id_ for id_ in expected if Id.of(id_).slot in (first, second)}
    wrong = sorted(id_ for id_ in expected if Id.of(id_).slot == first)
    with worker(here, "one") as one:
        here.wait_for(early, one)
        words = "--config", here.config, "--reason", "a wrong unit", *wrong
        done = run_verb(["ledger", "withdraw", *words], cwd=here.folder)
        assert done.returncode == 0, done.stderr.decode()
        here.feed(messages[half:])
        here.wait_for({f"withdrawn:{id_}" for id_ in wrong}, one)
        one.kill()
        one.wait()
    late = {id_ for id_ in expected if Id.of(id_).slot == slots_of(expected)[-3]}
    with worker(here, "two") as two:
        here.wait_for(late, two)
    records = here.read(here.topics.release)
    marks = [record for record in records if b"udp-stream/withdrawal/1" in record.value]
    assert sorted(Withdrawal.decode(record.value).withdraws for record in marks) == wrong
    assert {dict(record.headers)["ce_type"] for record in marks} == {b"udp-stream.withdrawal.1"}
    releases = [
        Release.decode(record.value).release_id for record in records if record not in marks
    ]
    assert set(wrong) <= set(releases) and len(set(releases)) == len(releases)
    done = run_verb(["releases", "--config", here.config], cwd=here.folder)
    assert done.stdout.count(b"udp-stream/withdrawal/1") == len(wrong)


def test_pings_of_archived_times_are_late(city):
    here = city(fleet_log(clean=True), shards=2, period="15m")
    expected, _ = here.embedded()
    here.set_idle("1h")
    first, second, third, *_ = slots_of(expected)
    with here.ledger() as (ledger, _):
        ledger.close_before(second[1])
    here.feed()
    with worker(here) as one:
        here.wait_for({id_ for id_ in expected if Id.of(id_).slot == third}, one)
    found = here.releases()
    assert {Id.of(id_).slot for id_ in found} & {first, second} == set() and third in slots_of(
        found
    )
    reasons = {
        dict(record.headers)[f"{ERROR}.reason"] for record in here.read(here.topics.rejected)
    }
    assert b"late" in reasons
    with here.ledger() as (ledger, _):
        assert ledger.verify() == []
