"""The compose file, the Dockerfile and the images' recipes say what the program says; no engine is needed to see it."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from udp_stream.cli.parsers import program
from udp_stream.ledgers.redis import DURABLE
from udp_stream.settings import known_keys, load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROGRAM = ("topics", "worker", "feed")
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def as_by_default(text):
    return VARIABLE.sub(lambda found: found[2], text)


SERVICES = yaml.safe_load(as_by_default(TEXT))["services"]


def test_redis_is_as_durable_as_the_ledger_demands():
    words = SERVICES["redis"]["command"].split()
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert {name: flags[f"--{name}"] for name, _, _ in DURABLE} == {name: value for name, value, _ in DURABLE}
    assert SERVICES["redis"]["volumes"] == ["ledger:/data"]


@pytest.mark.parametrize("name", PROGRAM)
def test_the_program_understands_its_command_and_its_environment(name, monkeypatch):
    service = SERVICES[name]
    parsed = program().parse_args(shlex.split(service["command"]))
    assert parsed.config == Path("/etc/udp-stream.toml")
    for variable, value in service["environment"].items():
        assert variable.removeprefix("UDP_STREAM_").lower().replace("__", ".") in known_keys()
        monkeypatch.setenv(variable, value)
    settings = load(ROOT / "deploy" / "trial.toml", ())
    assert settings.ledger.url == "redis://redis:6379/0"
    assert settings.ledger.key_file.startswith("/var/lib/udp-stream/")
    assert "keys:/var/lib/udp-stream" in service["volumes"]
    host, _, port = settings.kafka.bootstrap.partition(":")
    assert host in SERVICES
    assert f"://{host}:{port}," in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"://0.0.0.0:{port}," in SERVICES["kafka"]["environment"]["KAFKA_LISTENERS"]
    assert port in SERVICES["kafka"]["healthcheck"]["test"][-1]


def test_what_goes_on_is_watched_and_what_is_to_last_has_a_volume():
    (watched,) = re.findall(r"find (\S+) -newermt", DOCKERFILE)
    for name in ("worker", "feed"):
        assert f"--alive {watched} " in f"{SERVICES[name]['command']} ".replace("\n", " ")
        assert SERVICES[name]["depends_on"]["topics"]["condition"] == "service_completed_successfully"
    for name in ("kafka", "redis"):
        assert SERVICES[name]["healthcheck"]["test"]
    assert "redis" in SERVICES["worker"]["depends_on"]
    named = {volume.partition(":")[0] for each in SERVICES.values() for volume in each["volumes"]}
    assert {"kafka", "ledger", "keys"} <= named
    assert set(yaml.safe_load(as_by_default(TEXT))["volumes"]) == {"kafka", "ledger", "keys"}
