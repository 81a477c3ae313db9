"""The ladder of imports, read from the sources: files import from below, stages do not know each other."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LADDER = (
    {"errors", "units"},
    {"adapters.text", "ledger", "lifecycle"},
    {"pings"},
    {"mechanisms", "windows"},
    {"forecast"},
    {"planning", "queries"},
    {"experiments", "release", "shuffle"},
    {
        "adapters.entropy",
        "adapters.files",
        "adapters.installed",
        "adapters.kafka_section",
        "adapters.live_section",
        "adapters.logs",
        "adapters.secret_files",
        "testing",
        "trial",
    },
    {"adapters.schemes", "adapters.settings"},
    {"adapters.ledgers", "adapters.live"},
    {
        "adapters.embedded",
        "adapters.live_runtime",
        "adapters.one_off",
        "adapters.records_out",
        "adapters.spoken_log",
        "adapters.work_reports",
    },
    {"cli"},
    {"streams"},
    {"cli.commands"},
    {"cli.main"},
    {"__main__"},
)
"""Rooms from the bottom; a file may import from the rungs below its room's, and rooms from within themselves. What
verbs share lies below `streams`, and the verbs, which start it, above; the command line, which joins them, on top."""

RUNG = {name: rung for rung, names in enumerate(LADDER) for name in names}

WORLD = {"asyncio", "datetime.now", "io", "logging", "os", "pathlib", "random", "secrets", "socket", "subprocess",
         "sqlite3", "sys", "tempfile", "threading", "time", "urllib", "faust", "kafka", "redis", "rich",
         "matplotlib"}  # fmt: skip
"""What the pure files may not import: time, entropy, files, network. (The ledger in memory has a lock.)"""

OUTSIDE = ("adapters", "trial", "cli", "streams", "__main__")
"""What may: the world that the product runs on, what people read, and Kafka."""

THREADS = {"udp_stream.ledger.memory", "udp_stream.ledger.checks.crowds"}


def sources():
    for path in sorted((ROOT / "udp_stream").rglob("*.py")) + sorted((ROOT / "streams").rglob("*.py")):
        if path.name != "__init__.py":
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield path, room_of(module)


def room_of(module):
    """The room of a file or module; the verbs are one of their own, and so is the file that joins them."""
    if module.split(".")[0] == "streams":
        return "streams"
    parts = module.split(".")[1:]
    if parts[0] == "adapters" or parts[:2] in (["cli", "commands"], ["cli", "main"]):
        return ".".join(parts[:2])
    return parts[0]


def is_pure(room):
    return room.split(".")[0] not in OUTSIDE


@cache
def imported(path):
    return tuple(_imports(path))


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(module):
    parts = module.split(".")
    if parts[0] not in ("streams", "udp_stream") or (parts[0] == "udp_stream" and len(parts) == 1):
        return None
    return room_of(module) if room_of(module) in RUNG else None


@pytest.mark.parametrize(("path", "name"), list(sources()), ids=lambda value: str(value)[-40:])
def test_a_file_imports_only_from_below(path, name):
    assert name in RUNG, f"{name} has no rung in the ladder"
    for module in imported(path):
        other = ours(module)
        if other is not None and other != name:
            assert RUNG[other] < RUNG[name], f"{path.name} imports {module}, which is not below it"


def test_the_page_on_architecture_has_every_room_and_no_other():
    """docs/architecture.md, in its table of rooms; `adapters` by its parts."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## Rooms")[2].partition("##")[0]
    named = {
        path.removesuffix(".py").strip("/").replace("/", ".") for path in re.findall(r"`([a-z/_]+(?:/|\.py))`", table)
    }
    left_out = {"__main__", "testing", "adapters.text", "adapters.kafka_section", "adapters.live_section"}
    assert named == RUNG.keys() - left_out | {"streams"}


def test_no_files_import_each_other_in_a_circle():
    """Within a room files have rungs too, whichever these are."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path, _ in sources()}
    graph = {name: {other for other in imported(path) if other in modules} for name, path in modules.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)


@pytest.mark.parametrize(("path", "name"), [pair for pair in sources() if is_pure(pair[1])],
                         ids=lambda value: str(value)[-40:])  # fmt: skip
def test_the_core_asks_for_neither_time_entropy_files_nor_network(path, name):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    allowed = {"threading", "time", "io"} if module in THREADS else set()
    found = {module.split(".")[0] for module in imported(path)} & (WORLD - allowed)
    assert not found, f"{path.name} imports {found}"


def test_only_the_grid_imports_h3():
    users = {path.name for path, name in sources() if is_pure(name) and any(m.startswith("h3") for m in imported(path))}
    assert users == {"grid.py"}


SEEDED = ("plan.py", "plan_of_sizes.py", "reproduce.py")
"""Of the verbs that draw from a seed: one reads no speed, the other releases nothing."""


def users_of(*modules):
    """The files of the program that import one of these modules, wherever in the file."""
    return {path.relative_to(ROOT) for path, _ in sources() if set(modules) & set(imported(path))}


def test_seeded_bits_are_imported_by_two_verbs_that_release_nothing_and_by_no_other_file():
    """docs/privacy-model.md says this sentence for sentence."""
    verbs = Path("udp_stream", "cli", "commands")
    assert users_of("udp_stream.testing") == {verbs / name for name in SEEDED}
    names = [name.removesuffix(".py") for name in SEEDED]
    assert users_of(*(f"udp_stream.cli.commands.{name}" for name in names)) == {verbs / "plan.py"}
    text = " ".join((ROOT / "docs" / "privacy-model.md").read_text(encoding="utf-8").split())
    assert "two verbs import it: `plan`, which reads no speed, and `reproduce`, which releases nothing" in text
    assert "No other verb imports these two, so a verb that releases never loads seeded bits." in text


@pytest.mark.parametrize("verb", ["replay", "demo", "worker"])
def test_a_verb_that_releases_takes_its_bits_from_the_operating_system_and_never_loads_seeded_ones(verb):
    """In a process of its own, with all that the verb imports at once."""
    program = f"import sys, udp_stream.cli.main, udp_stream.cli.commands.{verb} as verb; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = loaded.stdout.split()
    assert "udp_stream.adapters.entropy" in modules and "udp_stream.testing" not in modules


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--help"], ["worker", "--no-such-option"]], ids=str)
def test_help_and_usage_import_neither_arrays_nor_clients(arguments):
    """They answer at once: no verb's code is imported before it runs, nor the configuration."""
    program = (
        "import sys, udp_stream.cli.main as cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: print('imported:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT)
    modules = done.stdout.partition("imported:")[2].split()
    assert "udp_stream.cli.parsers" in modules
    assert not {"numpy", "h3", "msgspec", "faust", "kafka", "redis", "udp_stream.cli.commands.worker"} & set(modules)


def test_importing_a_module_does_nothing():
    """No statement at module level that only acts: definitions alone."""
    for path, _ in sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            acts = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
            assert not acts and not isinstance(node, ast.For | ast.While | ast.With | ast.Delete), (
                f"{path}:{node.lineno}"
            )
