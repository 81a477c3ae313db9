"""What to type where a package is missing: never the bare name, which may be on no index."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from udp_stream.base.version import __version__

ROOT = Path(__file__).parents[2]


def packages_of(extra):
    """Name -> range of versions, of what the program needs and what an extra adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return {re.match(r"[\w-]+", line)[0]: line.partition(">")[2] for line in lines}


def test_the_extra_of_kafka_names_every_package_that_streams_imports():
    """Its own range for each, not one that another package happens to ask for."""
    nodes = [
        node
        for path in (ROOT / "streams").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    ]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    of_others = (
        {name.partition(".")[0] for name in names}
        - sys.stdlib_module_names
        - {"streams", "udp_stream"}
    )
    by_import = metadata.packages_distributions()
    needed = {by_import[name][0] for name in of_others}
    assert {"aiokafka", "faust-streaming", "kafka-python"} <= needed <= packages_of("kafka").keys()


def test_the_client_whose_internals_are_used_is_held_to_one_minor_version_wherever_faust_is_installed():
    for extra in ("kafka", "services", "test"):
        assert packages_of(extra)["aiokafka"] == "=0.14,<0.15"


def test_a_wheel_has_every_package_and_so_have_the_checks_of_types_and_imports():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages == set(tools["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert packages == set(tools["mypy"]["packages"]) == set(tools["importlinter"]["root_packages"])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_wheel_with_services_runs_the_demo_on_kafka_in_an_environment_of_its_own(tmp_path):
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    into = ["--python", environment / "bin" / "python"]
    pip = [sys.executable, "-m", "pip", *into, "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True, timeout=200
    )
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-compile", f"{wheel}[services]"], check=True, timeout=280)
    program = [environment / "bin" / "udp-stream"]
    said = subprocess.run(
        [*program, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == f"udp-stream {__version__}"
    bare = subprocess.run(
        [*program, "reproduce", "worst-case"], cwd=tmp_path, capture_output=True, text=True
    )
    assert bare.returncode == 4 and "[plots]" in bare.stderr
    demo = [*program, "demo", "--kafka", "--slots", "1", "--buses", "40", "--set", "hat.slot=1h"]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "km/h" in done.stdout
