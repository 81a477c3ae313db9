"""`status` and `doctor` on real workers: in the group, of other settings, killed, stopped."""

import json
import re
import time
from collections import Counter
from contextlib import contextmanager
from datetime import datetime

from lab.process import free_ports
from tests.forked import forked_to_log
from tests.integration.deployment import charges, log_of, worker
from tests.prometheus import series_once, told_apart
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.ledger.ids import Id
from udp_stream.planning.policy import written

PATIENCE_S = 90


def verb(city, *arguments):
    done = run_verb([*arguments, "--config", city.config], cwd=city.folder)
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def until(city, holds, *arguments):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        code, said, err = verb(city, "status", "--json")
        found = json.loads(said) if said else None
        if found and holds(found):
            return code, found
        assert time.monotonic() < deadline, (code, said, err)
        time.sleep(0.1)


def reading(found):
    return {one["name"]: len(one["partitions"]) for one in found["workers"]}


@contextmanager
def other_worker(city, *flags):
    arguments = ["worker", "--config", city.config, "--instance", "two", *flags]
    process = forked_to_log("tests.forked", arguments, city.folder / "two.err", city.folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_status_follows_workers_through_their_lives(city, redis_server):
    messages = fleet_log(clean=True)
    here = city(messages, ledger=redis_server.url)
    here.feed()
    code, found = until(here, lambda _: True)
    assert code == 4 and found["workers"] == [] and found["settings_agree"] is None
    with worker(here, "one") as one:
        code, found = until(here, lambda found: reading(found) == {"one": 5})
        assert (
            code == 0
            and found["troubles"] == []
            and found["settings_agree_with_this_configuration"] is True
        )
        expected, _ = here.embedded()
        here.wait_for(expected, one)
        _, found = until(here, lambda found: found["last_slot"])
        last_s = max(Id.of(release_id).slot[0] for release_id in expected)
        assert datetime.fromisoformat(found["last_slot"]["slot_start"]).timestamp() == last_s
        assert found["ledger"]["kind"] == "redis" and found["ledger"]["holdings"]["caveats"] == []
        assert verb(here, "doctor")[0] == 0
        with other_worker(here, "--set", "budget.epsilon=3") as two:
            code, found = until(here, lambda found: found["settings_agree"] is False)
            assert code == 3 and len({each["policy"] for each in found["workers"]}) == 2
            code, said, _ = verb(here, "doctor")
            assert code == 3 and "FAIL  workers" in said
            two.kill()
            until(here, lambda found: reading(found) == {"one": 5} and found["troubles"] == [])
    code, found = until(here, lambda found: not found["workers"])
    assert code == 4
    page = verb(here, "status")[1]
    plates = {json.loads(message)["license_plate"] for message in messages}
    assert len(plates) > 30 and not [plate for plate in plates if plate in page]


def test_a_worker_names_its_ledger_and_the_keys_in_which_other_settings_differ(city, redis_server):
    where = redis_server.url.rpartition("//")[2]
    here = city(fleet_log(clean=True, hours=0.6), ledger=redis_server.url)
    before = here.settings.policy
    here.feed()
    expected, _ = here.embedded()
    with worker(here) as running:
        here.wait_for(expected, running)
    (_, named), (_, begun), *said = log_of((here.folder / "one.err").read_text())
    assert named == f"ledger {where}, new" and begun.startswith("worker of group")
    assert all(level == "info" for level, _ in said) and any(
        "HATs, " in text and "pings, " in text for _, text in said
    )

    here.config.write_text(here.config.read_text().replace("min_plates = 4", "min_plates = 5"))
    with worker(here, "two"):
        pass
    (_, named), warned, *_ = log_of((here.folder / "two.err").read_text())
    assert re.match(
        rf"ledger {re.escape(where)}, made \S+Z: {len(expected)} HATs, the first of the", named
    )
    assert warned == (
        "warning",
        "the ledger holds HATs made under other settings (release.min_plates 4 -> 5): these HATs keep their records",
    )
    with here.ledger() as (ledger, _):
        noted = {name for name in ledger.meta() if name.startswith("policy:")}
        assert noted == {
            f"policy:{policy.fingerprint()}" for policy in (before, here.settings.policy)
        }
        assert (
            set(charges(ledger)) == set(expected) and written(before)["release.min_plates"] == "4"
        )


def test_a_worker_shows_what_it_has_read_and_released(city):
    messages, (port,) = told_apart(buses=40, hours=1.5), free_ports(1)
    here = city(messages)
    expected, _ = here.embedded()
    here.feed(
        [*messages, *[b"?"] * 30]
    )  # before a tick tells the time of today: behind it the log is late
    words = ["worker", "--config", here.config, "--metrics", f"127.0.0.1:{port}"]
    process = forked_to_log("tests.forked", words, here.folder / "one.err", here.folder)
    try:
        here.wait_for(expected, process)
        found = series_once(
            port, lambda found: found.by("hats_total", "status").total() == len(expected), process
        )
        idle = series_once(
            port, lambda found: not found["open_slots"] and not found["unread_messages"], process
        )
        process.terminate()
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
    records = list(here.releases().values())
    assert found.by("hats_total", "status") == Counter(
        json.loads(record)["status"] for record in records
    )
    assert found["pings_total"] == len(messages) and found.by("pings_refused_total", "reason") == {
        "not_json": 30
    }
    assert found["release_seconds_count"] == len(
        {json.loads(record)["hat"]["slot_start"] for record in records}
    )
    assert (
        idle["partitions"] == 5
        and idle["open_pings"] == idle["closing_seconds"] == 0 <= idle["stuck_seconds"] < 60
    )
    assert found.labels()["policy"] == {json.loads(records[0])["policy"]}
    assert found.secrets(messages, records) == idle.secrets(messages, records) == set()
