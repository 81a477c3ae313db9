"""`doctor` on a deployment that is well, and on each way in which it is not; it leaves nothing
behind."""

from uuid import uuid4

import pytest

from streams.feed import Feed, Pace
from streams.topics import create_topics, topics_of
from tests.integration.test_redis_ledger import replicas_of
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.settings import load


@pytest.fixture
def deployment(tmp_path, kafka_bootstrap, redis_url):
    config, name = tmp_path / "udp-stream.toml", f"d{uuid4().hex[:8]}"
    config.write_text(
        f'[kafka]\nbootstrap = "{kafka_bootstrap}"\nprefix = "{name}."\npartitions = 2\n'
        f'[ledger]\nurl = "{redis_url}"\nkey_file = "{tmp_path}/plates.key"\n'
    )
    settings = load(config, (), {})
    create_topics(settings.kafka)
    with Feed(settings.kafka, topics_of(settings.kafka).pings.name, 1, Pace()) as feed:
        feed.send(fleet_log(clean=True)[:6000])
    return config


def doctor(config, *flags):
    return run("doctor", config, *flags)


def run(verb, config, *flags):
    done = run_verb([verb, "--config", config, *flags], cwd=config.parent)
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, (done.stdout + done.stderr).decode()


def test_all_is_well_before_the_ledger_is_made_and_after(deployment):
    status, said = doctor(deployment)
    assert status == 0 and "FAIL" not in said, said
    assert "will be made at first use" in said and "pings move about as fast" in said
    assert sorted(path.name for path in deployment.parent.iterdir()) == ["udp-stream.toml"]
    url = f"sqlite:{deployment.parent}/city.ledger"
    with ledger_and_keys(load(deployment, (f"ledger.url={url}",), {}).ledger):
        pass
    status, said = doctor(deployment, "--set", f"ledger.url={url}")
    assert status == 0 and "bound to the key" in said, said
    (deployment.parent / "city.ledger").rename(deployment.parent / "kept")
    status, said = doctor(deployment, "--set", f"ledger.url={url}")
    assert (
        status == 5
        and "is not mounted" in said
        and not (deployment.parent / "city.ledger").exists()
    )
    (deployment.parent / "kept").rename(deployment.parent / "city.ledger")
    (deployment.parent / "plates.key").unlink()
    status, said = doctor(deployment, "--set", f"ledger.url={url}")
    assert status == 5 and "restore it" in said, said
    assert not (deployment.parent / "plates.key").exists()


@pytest.mark.parametrize(
    ("flag", "status", "sentence"),
    [
        ("kafka.prefix=elsewhere.", 3, "elsewhere.bus.pings.v1"),
        ("kafka.bootstrap=127.0.0.1:1", 4, "Kafka at 127.0.0.1:1"),
        ("kafka.partitions=3", 3, "2 partitions, wanted 3"),
        ("ledger.url=redis://127.0.0.1:1/0", 4, "127.0.0.1:1"),
        (
            "speed.unit=mps",
            3,
            "speed.unit is 'mps', and pings move about as fast as they report in 'kmh'",
        ),
    ],
)
def test_what_is_wrong_is_said_and_the_other_checks_still_run(deployment, flag, status, sentence):
    got, said = doctor(deployment, "--set", flag)
    assert got == status and sentence in said, said
    assert said.count("\nFAIL") + said.count("\nok ") >= (
        2 if "bootstrap" in flag else 3
    )  # of no broker one line


def test_latest_messages_that_are_refused_fail(deployment):
    settings = load(deployment, (), {})
    settings = load(deployment, ("kafka.prefix=refused" + settings.kafka.prefix,), {})
    create_topics(settings.kafka)
    flag = "--set", f"kafka.prefix={settings.kafka.prefix}"
    assert "unknown pings of the topic: it has none" in doctor(deployment, *flag)[1]
    with Feed(settings.kafka, topics_of(settings.kafka).pings.name, 1, Pace()) as feed:
        feed.send([b"\0\0\0\0\x07" + b"no JSON"] * 160)
    got, said = doctor(deployment, *flag)
    assert (
        got == 2 and "FAIL  pings of the topic: 160 of 160 pings of its latest refused" in said
    ), said
    assert "not_json" in said


def test_plates_that_come_by_several_partitions_fail_where_speeds_are_derived(deployment):
    moving = "--set", "speed.from=movement"
    got, said = doctor(deployment, *moving)
    assert got == 0 and "FAIL" not in said and "derived from positions" in said, said
    settings = load(deployment, (), {})
    log = fleet_log(clean=True)[6000:6100]
    with Feed(settings.kafka, topics_of(settings.kafka).pings.name, 1, Pace()) as feed:
        feed.send(
            [b"[" + b",".join(log[at : at + 10]) + b"]" for at in range(0, 100, 10)]
        )  # dealt out in turn
    got, said = doctor(deployment, *moving)
    assert got == 3 and "come by several partitions" in said, said
    assert doctor(deployment)[0] == 0, "speeds of the feed are what they are wherever they come"


def test_a_redis_with_a_replica_that_is_not_waited_for_is_refused_by_every_verb_that_charges(
    deployment, redis_server, tmp_path
):
    log = tmp_path / "pings.ndjson"
    log.write_bytes(b"\n".join(fleet_log(hours=0.3, clean=True)))
    with replicas_of(redis_server, tmp_path):
        on_it = ("--set", f"ledger.url={redis_server.url}")
        for verb, *more in (("replay", log), ("worker",), ("doctor",)):
            got, said = run(verb, deployment, *more, *on_it)
            assert got == 5 and "and ledger.replicas is 0" in said, said
            assert "set ledger.replicas = 1" in said
        waited_for = (*on_it, "--set", "ledger.replicas=1")
        got, said = run("replay", deployment, log, *waited_for)
        assert got == 0, said
        got, said = doctor(deployment, *waited_for)
        assert got == 0 and "bound to the key" in said, said
        got, said = doctor(deployment, *on_it)
        assert got == 5 and "FAIL  ledger: " in said and "has 1 replica" in said, said
        got, said = run("replay", deployment, log, *on_it, "--set", "ledger.allow_volatile=true")
        assert got == 0 and "has 1 replica" in said and "privacy statement does" in said, said
