"""The ladder of imports, read from the sources: files import from below, stages do not know each other."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LADDER = (
    {"errors", "units"},
    {"ports", "ping_refusals", "timestamps", "grouping", "periods"},
    {"ping_json", "ledger_rules", "ledger_past", "noise", "policy", "slots", "hats", "budgeting"},
    {"pings", "memory_ledger", "testing", "accounting"},
    {"means", "cdfs"},
    {"variance", "worst_case"},
    {"suppression"},
    {"clocks", "checks", "plan", "plausibility"},
    {"windows", "parts", "planner", "slot_plan", "gathering"},
    {"reading", "tallies"},
    {"shards", "messages"},
    {"estimate"},
    {"experiments"},
    {"release"},
    {"flow"},
    {"adapters"},
    {"streams"},
    {"commands"},
)
"""From the bottom; a file may import from the rungs below its own, and packages from within themselves."""

RUNG = {name: rung for rung, names in enumerate(LADDER) for name in names}

WORLD = {"asyncio", "datetime.now", "io", "logging", "os", "pathlib", "random", "secrets", "socket", "subprocess",
         "sqlite3", "sys", "tempfile", "threading", "time", "urllib", "faust", "kafka", "redis", "rich",
         "matplotlib"}  # fmt: skip
"""What the pure files may not import: time, entropy, files, network. (`memory_ledger` and `checks` use threads.)"""

OUTSIDE = {"adapters", "streams", "commands"}

THREADS = {"memory_ledger", "checks"}


def sources():
    for path in sorted((ROOT / "udp_stream").rglob("*.py")) + sorted((ROOT / "streams").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__init__":
            yield path, place_of(parts)


def place_of(parts):
    """The name in the ladder of a file or module: the verbs are above what they start, `streams` included."""
    if parts[0] == "streams" or parts[1:3] == ("adapters", "commands"):
        return "streams" if parts[0] == "streams" else "commands"
    return parts[1]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(module):
    parts = tuple(module.split("."))
    if parts[0] not in ("streams", "udp_stream") or (parts[0] == "udp_stream" and len(parts) == 1):
        return None
    return place_of(parts) if place_of(parts) in RUNG else None


@pytest.mark.parametrize(("path", "name"), list(sources()), ids=lambda value: str(value)[-40:])
def test_a_file_imports_only_from_below(path, name):
    assert name in RUNG, f"{name} has no rung in the ladder"
    for module in imported(path):
        other = ours(module)
        if other is not None and other != name:
            assert RUNG[other] < RUNG[name], f"{path.name} imports {module}, which is not below it"


@pytest.mark.parametrize(("path", "name"), [pair for pair in sources() if pair[1] not in OUTSIDE],
                         ids=lambda value: str(value)[-40:])  # fmt: skip
def test_the_core_asks_for_neither_time_entropy_files_nor_network(path, name):
    allowed = {"threading", "time", "io"} if name in THREADS else set()
    found = {module.split(".")[0] for module in imported(path)} & (WORLD - allowed)
    assert not found, f"{path.name} imports {found}"


def test_only_hats_imports_h3():
    users = {
        path.name for path, name in sources() if name not in OUTSIDE and any(m.startswith("h3") for m in imported(path))
    }
    assert users == {"hats.py"}


SEEDED = ("plan.py", "reproduce.py")
"""The verbs that draw from a seed: one sees no pings, the other releases nothing."""


def users_of(*modules):
    """The files of the program that import one of these modules, wherever in the file."""
    return {path.relative_to(ROOT) for path, _ in sources() if set(modules) & set(imported(path))}


def test_seeded_bits_are_imported_by_two_verbs_that_release_nothing_and_by_no_other_file():
    """docs/privacy-model.md says this sentence for sentence."""
    verbs = Path("udp_stream", "adapters", "commands")
    assert users_of("udp_stream.testing") == {verbs / name for name in SEEDED}
    names = [name.removesuffix(".py") for name in SEEDED]
    assert not users_of(*(f"udp_stream.adapters.commands.{name}" for name in names))
    text = " ".join((ROOT / "docs" / "privacy-model.md").read_text(encoding="utf-8").split())
    assert (
        "two files import it: the verb `plan`, which reads no pings, and the verb `reproduce`, which releases" in text
    )
    assert "No other file imports these two, so a verb that releases never loads seeded bits." in text


@pytest.mark.parametrize("verb", ["replay", "demo", "worker"])
def test_a_verb_that_releases_takes_its_bits_from_the_operating_system_and_never_loads_seeded_ones(verb):
    """In a process of its own, with all that the verb imports at once."""
    program = f"import sys, udp_stream.adapters.cli, udp_stream.adapters.commands.{verb} as verb; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = loaded.stdout.split()
    assert "udp_stream.adapters.entropy" in modules and "udp_stream.testing" not in modules


def test_importing_a_module_does_nothing():
    """No statement at module level that only acts: definitions alone."""
    for path, _ in sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            acts = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
            assert not acts and not isinstance(node, ast.For | ast.While | ast.With | ast.Delete), (
                f"{path}:{node.lineno}"
            )
