"""`worker --hold` stays until it is stopped, whatever the cause and the moment: a supervisor that
restarts whatever ends would start it again and again."""

import asyncio
import signal
import subprocess
from contextlib import suppress

import pytest

from lab.process import free_ports
from streams.kafka import OutgoingRecord, Producer
from tests.forked import forked_to_log
from tests.integration.deployment import log_of
from tests.prometheus import health, healthy_once
from tests.runtime.harness import fleet_log
from udp_stream.base.errors import ConfigError, PrivacyRefused

DRAIN_S = 1.0


def held(folder, config, port, hangs="", *words):
    flags = [
        "--hold",
        "--config",
        config,
        "--metrics",
        f"127.0.0.1:{port}",
        "--alive",
        folder / "alive",
    ]
    given = [DRAIN_S, hangs, "worker", *flags, *words]
    return forked_to_log("tests.integration.held_worker", given, folder / "log", folder)


def ended_by_its_supervisor(process, port, folder):
    healthy_once(port, "/readyz", 503, process)
    (folder / "alive").unlink(missing_ok=True)
    with suppress(subprocess.TimeoutExpired):
        process.wait(4 * DRAIN_S)  # more than the drain takes
    assert process.poll() is None and (folder / "alive").exists()
    assert health(port, "/healthz") == (200, "ok\n") and health(port, "/readyz")[0] == 503
    process.send_signal(signal.SIGTERM)
    return process.wait(20)


@pytest.mark.parametrize("hangs", ["", "hangs"])
def test_a_worker_that_fails_at_work_is_held_for_longer_than_its_drain(hangs, city, redis_server):
    here, (port,) = city(fleet_log(clean=True), ledger=redis_server.url), free_ports(1)

    async def of_another_version():
        async with Producer(here.settings.kafka) as producer:
            await producer.write([OutgoingRecord(here.topics.parts.name, b"{}", partition=0)])

    process = held(here.folder, here.config, port, hangs)
    try:
        healthy_once(port, "/readyz", 200, process)
        asyncio.run(of_another_version())
        assert ended_by_its_supervisor(process, port, here.folder) == PrivacyRefused.exit_status
    finally:
        process.kill()
        process.wait()
    said = log_of((here.folder / "log").read_text())
    assert sum("Held until" in text for _, text in said) == 1


@pytest.mark.parametrize("wrong", ["hat.resolution=99", "ledger.url="])
def test_a_worker_that_cannot_begin_is_held(wrong, city):
    here, (port,) = city([]), free_ports(1)
    process = held(here.folder, here.config, port, "", "--set", wrong)
    try:
        assert ended_by_its_supervisor(process, port, here.folder) == ConfigError.exit_status
    finally:
        process.kill()
        process.wait()
