"""The systemd units and the Kubernetes manifests: valid where they say what they are, and true of
this program.

Manifests are held against the schemas of the Kubernetes API, strictly, as a package has them; the
units against `systemd-analyze verify` where there is one, and always against the settings that it
relies on. No cluster runs here.
"""

import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from udp_stream.base.errors import FOR_A_PERSON
from udp_stream.cli.parsers import program
from udp_stream.ledgers.keys import is_key
from udp_stream.settings import load

ROOT = Path(__file__).parents[2]
UNITS = {
    path.stem.removeprefix("udp-stream-"): path
    for path in (ROOT / "deploy" / "systemd").glob("*.service")
}
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
DOCUMENTS = [
    document
    for path in MANIFESTS
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
BY_KIND = {document["kind"]: document for document in DOCUMENTS}


def unit(name="worker@"):
    """Section -> key -> values; a backslash at the end of a line goes on in the next."""
    sections = defaultdict(lambda: defaultdict(list))
    for line in UNITS[name].read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            sections[section][key].append(value)
    return sections


def pods():
    for kind in ("StatefulSet", "Job"):
        yield BY_KIND[kind]["spec"]["template"]["spec"]


def containers():
    for pod in pods():
        yield from ((pod, one) for one in [*pod.get("initContainers", ()), *pod["containers"]])


def test_the_manifests_are_valid_by_the_schemas_of_kubernetes():
    assert {
        "ConfigMap",
        "Job",
        "StatefulSet",
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
    } == set(BY_KIND)
    for document in DOCUMENTS:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_commands_are_those_of_this_program():
    started = [
        shlex.split(unit(name)["Service"]["ExecStart"][0].replace("%i", "1"))[1:] for name in UNITS
    ]
    assert len(started) == 3
    for arguments in (*started, *(one["args"] for _, one in containers() if "command" not in one)):
        parsed = program().parse_args(arguments)
        assert parsed.command and str(parsed.config).startswith("/etc/udp-stream/")


def test_what_no_restart_mends_restarts_nothing():
    for name in UNITS:
        (statuses,) = unit(name)["Service"]["RestartPreventExitStatus"]
        assert set(map(int, statuses.split())) == set(FOR_A_PERSON) and 4 not in FOR_A_PERSON
    (worker,) = [one["args"] for _, one in containers() if "ports" in one]
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["worker"]
    assert composed["restart"] == "unless-stopped"  # it starts again whatever ends
    for arguments in (worker, shlex.split(composed["command"])):
        assert program().parse_args(arguments).hold


def test_the_units_say_the_same_of_what_they_must_not_do_and_each_has_a_user_and_a_state():
    confined = [
        UNITS[name].read_text(encoding="utf-8").partition("\nNoNewPrivileges=yes\n")[2]
        for name in UNITS
    ]
    assert (
        len(set(confined)) == 1
        and "\nProtectHome=yes\n" in confined[0]
        and "\nUMask=0077\n" in confined[0]
    )
    for name in UNITS:
        service = unit(name)["Service"]
        assert service["ProtectSystem"] == ["strict"] and service["User"] == service["Group"] == [
            "udp-stream"
        ]
        assert service["StateDirectory"][0].split()[0] == "udp-stream" and service[
            "StateDirectoryMode"
        ] == ["0700"]
        assert service["Restart"] == ["always"]
    hidden, shown = (
        unit("dashboard")["Service"]["TemporaryFileSystem"],
        unit("dashboard")["Service"]["BindReadOnlyPaths"],
    )
    assert hidden == ["/var/lib/udp-stream:ro"] and shown == ["/var/lib/udp-stream/released"]
    run = program().parse_args(shlex.split(unit("run")["Service"]["ExecStart"][0])[1:])
    assert {Path(run.out).parent, Path(run.smoothed).parent} == {Path("released")} and run.metrics[
        0
    ] == "127.0.0.1"


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="without systemd; the units are parsed all the same"
)
def test_systemd_understands_the_units(tmp_path):
    for name, path in UNITS.items():
        text = path.read_text(encoding="utf-8").replace(
            "/opt/udp-stream/bin/udp-stream", sys.executable
        )
        (tmp_path / path.name.replace("@", "@1")).write_text(text, encoding="utf-8")
        (tmp_path / "broken.service").write_text(
            text.replace("ProtectHome=", "ProtectHoem="), encoding="utf-8"
        )
        good, broken = (
            subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", one],
                           cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False)
            for one in (path.name.replace("@", "@1"), "broken.service")
        )  # fmt: skip
        assert good.returncode == 0 and "udp-stream" not in good.stderr, f"{name}: {good.stderr}"
        assert "ProtectHoem" in broken.stderr


def test_probes_ask_where_the_metrics_are():
    (worker,) = [one for _, one in containers() if "ports" in one]
    for probe, path in ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz"):
        assert worker[probe]["httpGet"] == {"path": path, "port": worker["ports"][0]["name"]}


def test_prometheus_and_nobody_else_reaches_the_port_of_metrics():
    (worker,) = [one for _, one in containers() if "ports" in one]
    host, port = program().parse_args(worker["args"]).metrics
    assert host == "0.0.0.0" and worker["ports"] == [{"name": "metrics", "containerPort": port}]
    (rule,) = BY_KIND["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": "metrics"}]
    assert rule["from"] == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
    ]


def test_the_settings_are_valid_and_their_files_are_mounted(tmp_path):
    (tmp_path / "city.toml").write_text(BY_KIND["ConfigMap"]["data"]["city.toml"])
    settings = load(tmp_path / "city.toml", (), {})
    assert settings.kafka.protocol == "SASL_SSL" and settings.ledger.url.startswith("rediss://")
    for pod, one in containers():
        mounted = {mount["mountPath"]: mount["name"] for mount in one["volumeMounts"]}
        claimed = {
            claim["metadata"]["name"]
            for claim in BY_KIND["StatefulSet"]["spec"]["volumeClaimTemplates"]
        }
        assert set(mounted.values()) <= {volume["name"] for volume in pod["volumes"]} | claimed
        of_kafka, of_ledger = settings.kafka.client, settings.ledger.client
        secrets = [
            of_kafka["sasl_plain_password_file"],
            of_ledger["password_file"],
            of_kafka["ssl_cafile"],
        ]
        if one["name"] != "key":
            assert all(str(Path(file).parent) in mounted for file in secrets)
    assert str(Path(settings.ledger.key_file).parent) == unit()["Service"]["WorkingDirectory"][0]


def test_pods_run_as_nobody_special_and_secrets_are_files_that_the_program_accepts():
    for pod, one in containers():
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
        assert one["securityContext"]["readOnlyRootFilesystem"] and one["securityContext"][
            "capabilities"
        ]["drop"] == ["ALL"]
        (secrets,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert (
            secrets["defaultMode"] == 0o400
        )  # root's; with fsGroup its group may read it, and nobody else
        assert not [entry for entry in one.get("env", ()) if "secretKeyRef" in str(entry)]


def test_the_first_container_gives_each_worker_the_key_and_never_another_one(tmp_path):
    """Its script, run in a folder of its own."""
    (key,) = BY_KIND["StatefulSet"]["spec"]["template"]["spec"]["initContainers"]
    (tmp_path / "given").mkdir()
    (tmp_path / "state").mkdir()
    script = key["args"][0].replace("/run/secrets/udp-stream", str(tmp_path / "given"))
    script = script.replace("/var/lib/udp-stream", str(tmp_path / "state"))
    command = [*key["command"], script]
    assert (
        subprocess.run(command, timeout=20, capture_output=True, check=False).returncode != 0
    )  # no key: no worker
    first = b"5" * 64 + b"\n"
    for text in (first, b"6" * 64 + b"\n"):
        (tmp_path / "given" / "plates.key").write_bytes(text)
        subprocess.run(command, timeout=20, check=True)
        made = tmp_path / "state" / "plates.key"
        assert made.read_bytes() == first and is_key(first) and made.stat().st_mode & 0o777 == 0o600
