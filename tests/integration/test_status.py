"""`status` and `doctor` on real workers: in the group, of other settings, killed, stopped."""

import json
import time
from contextlib import contextmanager
from datetime import datetime

from tests.forked import forked_to_log
from tests.integration.deployment import worker
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.release.record import slot_of

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
        assert code == 0 and found["troubles"] == [] and found["settings_agree_with_this_configuration"] is True
        expected, _ = here.embedded()
        here.wait_for(expected, one)
        _, found = until(here, lambda found: found["last_slot"])
        last_s = max(slot_of(release_id)[0] for release_id in expected)
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
