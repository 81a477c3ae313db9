"""The compose file, the Dockerfile and the images' recipes say what the program says; no engine is
needed to see it."""

import re
import shlex
from pathlib import Path

import yaml

from udp_stream.cli.parsers import program
from udp_stream.ledgers.redis import DURABLE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RECIPE = (ROOT / "deploy" / "local-images").read_text()
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def as_by_default(text):
    return VARIABLE.sub(lambda found: found[2], text)


SERVICES = yaml.safe_load(as_by_default(TEXT))["services"]


def test_redis_is_as_durable_as_the_ledger_demands():
    words = SERVICES["redis"]["command"].split()
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert {name: flags[f"--{name}"] for name, _, _ in DURABLE} == {
        name: value for name, value, _ in DURABLE
    }
    assert SERVICES["redis"]["volumes"] == ["ledger:/data"]


def test_what_goes_on_is_watched_and_what_is_to_last_has_a_volume():
    (watched,) = re.findall(r"find (\S+) -newermt", DOCKERFILE)
    assert f"--alive {watched} " in f"{SERVICES['feed']['command']} ".replace("\n", " ")
    _, port = program().parse_args(shlex.split(SERVICES["worker"]["command"])).metrics
    assert f"http://127.0.0.1:{port}/readyz" in SERVICES["worker"]["healthcheck"]["test"][-1]
    for name in ("worker", "feed"):
        assert (
            SERVICES[name]["depends_on"]["topics"]["condition"] == "service_completed_successfully"
        )
    for name in ("kafka", "redis"):
        assert SERVICES[name]["healthcheck"]["test"]
    assert "redis" in SERVICES["worker"]["depends_on"]
    named = {volume.partition(":")[0] for each in SERVICES.values() for volume in each["volumes"]}
    assert {"kafka", "ledger", "keys"} <= named
    assert set(yaml.safe_load(as_by_default(TEXT))["volumes"]) == {"kafka", "ledger", "keys"}


def test_the_dashboard_is_on_the_loopback_alone_and_has_neither_ledger_nor_key():
    service = SERVICES["dashboard"]
    assert program().parse_args(shlex.split(service["command"])).set == [
        "dashboard.listen=0.0.0.0:8321"
    ]
    assert service["ports"] == ["127.0.0.1:8321:8321"]
    assert set(service["environment"]) == {"UDP_STREAM_KAFKA__BOOTSTRAP"}
    assert [volume.partition(":")[0] for volume in service["volumes"]] == ["./deploy/trial.toml"]
    (installed,) = re.findall(r"'\.\[(.*)\]'", DOCKERFILE)
    assert "dashboard" in installed.split(",") and f"/src[{installed}]" in RECIPE
