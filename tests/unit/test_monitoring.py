"""Prometheus, Grafana, `run` and the dashboard in compose: what each file says of the others, and
of this program."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.promtool import found
from udp_stream.cli.metrics import Metrics
from udp_stream.cli.parsers import program
from udp_stream.dashboard.server import Dashboard, _Series
from udp_stream.dashboard.slots import Slots

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "monitoring"
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")
SOURCE = "https://feed.example/vehicles.pb"
COMPOSE = yaml.safe_load(
    VARIABLE.sub(
        lambda found: found[3] if found[2] == "-" else SOURCE,
        (HERE / "docker-compose.yml").read_text(encoding="utf-8"),
    )
)
SERVICES = COMPOSE["services"]
PROMETHEUS = yaml.safe_load((HERE / "prometheus.yml").read_text())
BOARD = json.loads((HERE / "udp-stream.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
RULES = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"][0]["rules"]


def series():
    """All that our programs show, by the names of samples."""
    ours, families = Metrics("udp-stream test", "5eed").registry.collect(), []
    families += [*ours, *_Series(Dashboard(Slots(48))).collect()]
    made = {"counter": "_total", "info": "_info", "histogram": "_bucket"}
    return {family.name + made.get(family.type, "") for family in families}


def test_every_query_names_series_that_there_are_and_no_series_is_left_out():
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    asked = {name for query in QUERIES for name in re.findall(r"\budp_stream[\w:]+", query)}
    assert asked <= series() | recorded and asked >= series()
    assert all(re.search(r"\budp_stream", query) for query in QUERIES) and len(QUERIES) > 25


def test_prometheus_understands_every_query_and_its_configuration(tmp_path):
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "queries.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]})
    )
    shutil.copy(HERE / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "deploy" / "alerts.yaml", tmp_path)
    for words in (["rules", "queries.yaml"], ["config", "prometheus.yml"]):
        done = subprocess.run(
            [found(), "check", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_panels_lie_beside_each_other_and_ask_the_one_source_that_is_provisioned():
    (source,) = yaml.safe_load((HERE / "datasource.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {
        source["uid"]
    } and "prometheus" in SERVICES
    assert source["url"] == "http://prometheus:9090"
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_what_is_scraped_answers_there_and_what_is_mounted_is_there():
    words = {name: shlex.split(SERVICES[name]["command"]) for name in ("run", "dashboard")}
    run, board = (program().parse_args(words[name]) for name in words)
    assert (
        run.source == SOURCE
        and run.metrics == ("0.0.0.0", 9464)
        and board.set == ["dashboard.listen=0.0.0.0:8321"]
    )
    jobs = {
        job["job_name"]: job["static_configs"][0]["targets"] for job in PROMETHEUS["scrape_configs"]
    }
    assert jobs == {"udp-stream": ["run:9464"], "udp-stream-dashboard": ["dashboard:8321"]}
    assert all(f'job="{job}"' in str(RULES) for job in ["udp-stream"])
    assert [str(run.out), str(run.smoothed)] == list(board.files)
    for service in SERVICES.values():
        for volume in service["volumes"]:
            place, target, *mode = volume.split(":")
            assert place in COMPOSE["volumes"] or ((HERE / place).is_file() and mode == ["ro"]), (
                volume
            )
            assert target.startswith("/")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    folders = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert {
        f"/etc/prometheus/{name}" for name in ("prometheus.yml", *PROMETHEUS["rule_files"])
    } < folders
    (provider,) = yaml.safe_load((HERE / "grafana.yaml").read_text())["providers"]
    assert f"{provider['options']['path']}/udp-stream.json" in str(SERVICES["grafana"]["volumes"])


def test_the_dashboard_has_neither_ledger_nor_key_and_health_is_asked_where_it_is_told():
    of_board = {volume.split(":")[0]: volume for volume in SERVICES["dashboard"]["volumes"]}
    assert set(of_board) == {"../trial.toml", "released"} and of_board["released"].endswith(":ro")
    assert "http://127.0.0.1:9464/readyz" in SERVICES["run"]["healthcheck"]["test"][-1]
    assert "http://127.0.0.1:8321/healthz" in SERVICES["dashboard"]["healthcheck"]["test"][-1]
    made = re.findall(
        r"install --directory .*--owner udp-stream .* (/\S+) (/\S+)\n",
        (ROOT / "Dockerfile").read_text(),
    )
    assert made == [("/var/lib/udp-stream", "/var/lib/udp-stream/released")]


def has_compose():
    command = ["docker", "compose", "version"]
    return (
        bool(shutil.which("docker"))
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(
    not has_compose(), reason="without docker compose; the file is parsed all the same"
)
def test_compose_understands_the_file():
    command = ["docker", "compose", "-f", HERE / "docker-compose.yml", "config", "--quiet"]
    given = {**os.environ, "UDP_STREAM_SOURCE": SOURCE}
    done = subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
