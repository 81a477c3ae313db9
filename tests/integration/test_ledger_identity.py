"""A deployment has one ledger and one key, on the real broker: who comes with another one is
refused with status 5."""

import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
from redis import Redis

from streams.topics import HEADER, LedgerIdentity, admin
from tests.forked import forked_to_log
from tests.integration.deployment import SERVING, worker
from tests.runtime.harness import fleet_log
from tests.verbs import run_verb
from udp_stream.ledger.port import Admission
from udp_stream.ledgers.opening import ledger_and_keys
from udp_stream.settings import load

PATIENCE_S = 30


@contextmanager
def starting(city, name, *flags, really=False):
    """A worker in a folder of its own; `really` by an interpreter of its own, as from a shell."""
    folder = city.folder / name
    folder.mkdir()
    said = folder / "said"
    arguments = [str(one) for one in ("worker", "--config", city.config, *flags)]
    if really:
        with said.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "udp_stream", *arguments], stderr=err, cwd=folder
            )
    else:
        process = forked_to_log("tests.forked", arguments, said, folder)
    process.said = said
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ends(process):
    status = process.wait(PATIENCE_S)
    said = process.said.read_text()
    assert "Traceback" not in said
    return status, said


def serves(process):
    deadline = time.monotonic() + PATIENCE_S
    while SERVING not in process.said.read_text():
        assert process.poll() is None and time.monotonic() < deadline, process.said.read_text()
        time.sleep(0.05)


def ledger_flags(folder, name, key="plates.key"):
    return "--set", f"ledger.url=sqlite:{folder}/{name}", "--set", f"ledger.key_file={folder}/{key}"


def doctor(city, *flags):
    done = run_verb(["doctor", "--config", city.config, *flags], cwd=city.folder)
    return done.returncode, (done.stdout + done.stderr).decode()


def without_ledger(city):
    text = re.sub(r"\[ledger\]\n(.+\n)*?(?=\[)", "", city.config.read_text())
    assert "sqlite" not in text
    city.config.write_text(text)


def test_a_worker_takes_no_ledger_that_nobody_has_named(city):
    made = city(fleet_log(clean=True)[:2000])
    without_ledger(made)
    with starting(made, "one", really=True) as process:
        status, said = ends(process)
    assert status == 3 and "ledger.url:" in said
    assert [path.name for path in (made.folder / "one").iterdir()] == ["said"]
    assert made.read(made.topics.deployment) == []
    status, said = doctor(made)
    assert status == 3 and "ledger.url" in said


def test_of_two_ledgers_that_start_at_the_same_moment_one_is_taken_for_ever(city):
    made = city(fleet_log(clean=True)[:2000])
    flags = {
        name: ledger_flags(made.folder, f"{name}.ledger", f"{name}.key") for name in ("one", "two")
    }
    with starting(made, "one", *flags["one"]) as one, starting(made, "two", *flags["two"]) as two:
        deadline = time.monotonic() + PATIENCE_S
        while one.poll() is None and two.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        refused, other, name = (one, two, "two") if one.poll() is not None else (two, one, "one")
        status, said = ends(refused)
        assert (
            status == 5 and "works on the ledger" in said and "two ledgers are two budgets" in said
        )
        serves(other)
    with starting(made, "later", *flags["one" if name == "two" else "two"]) as later:
        assert ends(later)[0] == 5
    with starting(made, "again", *flags[name], really=True) as again:
        serves(again)


@pytest.mark.long
def test_another_ledger_or_key_takes_nothing_over_even_where_the_claim_is_gone(city):
    made = city(fleet_log(clean=True))
    made.feed()
    with worker(made) as process:
        made.wait_for(made.embedded()[0], process)
    with made.ledger() as (ledger, _):
        binding = LedgerIdentity.of(ledger.meta())
        entries = len(list(ledger.entries()))
    assert all(
        dict(one.headers)[HEADER] == binding.header[1] for one in made.read(made.topics.parts)
    )
    other = ledger_flags(made.folder, "other", "other.key")
    assert (
        doctor(made)[0] == 0
        and f"its workers work on this ledger, {binding.ledger_id}" in doctor(made)[1]
    )
    status, said = doctor(made, *other)
    assert (
        status == 5
        and f"work on the ledger {binding.ledger_id}, and this configuration has one that is not"
        in said
    )
    for _ in range(2):  # once with the claim, and once without
        with starting(made, "other-ledger", *other) as process:
            status, said = ends(process)
            assert status == 5 and "works on the ledger" in said, said
        shutil.rmtree(made.folder / "other-ledger")
        with admin(made.settings.kafka) as client:
            client.delete_topics([made.topics.deployment.name])
        create = ["topics", "create", "--config", made.config]
        deadline = time.monotonic() + PATIENCE_S
        while b"deployment.v1: created" not in run_verb(create, cwd=made.folder).stdout:
            assert time.monotonic() < deadline
            time.sleep(0.3)
    flags = (f"ledger.url={made.folder}/other", f"ledger.key_file={made.folder}/other.key")
    with ledger_and_keys(load(made.config, flags, {}).ledger) as (other, _):
        assert list(other.entries()) == []
    with made.ledger() as (ledger, _):
        assert len(list(ledger.entries())) == entries and ledger.verify() == []


def test_a_machine_that_is_new_to_a_deployment_takes_its_ledger_and_no_other(city, redis_server):
    made = city(fleet_log(clean=True)[:2000], ledger=redis_server.url)
    with made.ledger() as (ledger, _):
        ledger.admit(
            "2024-01-01", 10, [b"plate"], [Admission("hat", np.array([0]), np.array([1]), 1, b"")]
        )
    shutil.copy(made.folder / "plates.key", made.folder / "late.key")
    late = ("--set", f"ledger.key_file={made.folder}/late.key")
    with starting(made, "too-early", *late) as process:
        status, said = ends(process)
    assert (
        status == 5
        and "ledger accept-older" in said
        and not (made.folder / "late.key.ledger-id").exists()
    )
    with starting(made, "one") as process:
        serves(process)
    with starting(made, "late", *late) as process:
        serves(process)
    assert (made.folder / "late.key.ledger-id").exists()


@pytest.mark.parametrize("known", [True, False])
def test_no_key_is_made_where_redis_has_a_ledger(city, redis_server, known):
    made = city(fleet_log(clean=True)[:2000], ledger=redis_server.url)
    with made.ledger():
        pass
    key = made.folder / "plates.key"
    if not known:
        (made.folder / "plates.key.ledger-id").unlink()
    key.rename(made.folder / "kept")
    with starting(made, "one") as process:
        status, said = ends(process)
    assert status == 5 and f"{key}: the key of the ledger's plates is not there" in said
    assert "plates.key" in said and not key.exists()
    with starting(made, "two", "--set", "ledger.key_file=elsewhere.key") as process:
        status, said = ends(process)
    assert (
        status == 5
        and f"{made.folder}/two/elsewhere.key: the key of the ledger's plates is not there" in said
    )
    assert [path.name for path in (made.folder / "two").iterdir()] == ["said"]


def test_a_key_that_was_made_at_the_same_moment_as_another_machines_is_taken_back(
    city, redis_server, monkeypatch
):
    made = city(fleet_log(clean=True)[:2000], ledger=redis_server.url)
    from udp_stream.base.errors import PrivacyRefused
    from udp_stream.ledgers import opening

    with made.ledger():
        pass
    there = load(made.config, (f"ledger.key_file={made.folder}/late.key",), {}).ledger
    monkeypatch.setattr(
        opening, "_is_there", lambda _url: False
    )  # it looked before the other one made it
    with (
        pytest.raises(
            PrivacyRefused, match=r"late\.key: the key of the ledger's plates is not there"
        ),
        ledger_and_keys(there),
    ):
        pass
    assert (
        not (made.folder / "late.key").exists()
        and not (made.folder / "late.key.ledger-id").exists()
    )


def test_workers_of_one_machine_that_start_at_once_on_an_empty_redis_share_its_key(
    city, redis_server, monkeypatch
):
    made = city(fleet_log(clean=True)[:2000], ledger=redis_server.url)
    from udp_stream.ledgers import opening

    asked, look = load(made.config, (), {}).ledger, opening._is_there

    def after_the_other(asked):
        if next(left, False):
            with ledger_and_keys(asked) as (_, keys):
                found.append(keys.fingerprint())
        return look(asked)

    found, left = [], iter([True])
    monkeypatch.setattr(opening, "_is_there", after_the_other)
    with ledger_and_keys(asked) as (ledger, keys):
        assert found == [keys.fingerprint()] == [ledger.meta()["key_fingerprint"]]


def test_a_redis_that_is_set_back_while_workers_run_stops_them(city, redis_server):
    messages = fleet_log(clean=True)
    made = city(messages, ledger=redis_server.url)
    made.set_idle("1h")
    half = len(messages) // 2
    with Redis.from_url(redis_server.url, protocol=2) as client, starting(made, "one") as process:
        serves(process)
        made.feed(messages[:half])
        deadline, before, since = time.monotonic() + PATIENCE_S, {}, time.monotonic()
        while (
            len(before) < 10 or time.monotonic() - since < 3
        ):  # a slot that is under way may be published yet
            assert process.poll() is None and time.monotonic() < deadline, process.said.read_text()
            time.sleep(0.1)
            if len(now := made.releases()) > len(before):
                before, since = dict(now), time.monotonic()
        keys = [
            key
            for key in client.scan_iter("{udp}:*")
            if not key.startswith((b"{udp}:meta", b"{udp}:beat"))
        ]
        client.delete(*keys)
        made.feed(messages[half:])
        status, said = ends(process)
    assert status == 5 and (
        "went back in time" in said or "are gone" in said or "expected an admission" in said
    ), said
    assert made.releases() == before
