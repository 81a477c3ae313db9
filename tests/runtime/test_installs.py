"""Every verb in each of the installs that README and tutorial name: it works, or says which extra
it needs."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.forms import long_but, soaked
from tests.runtime.harness import fleet_log

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

PROGRAM = """
import importlib.machinery, io, json, sys
from contextlib import redirect_stderr, redirect_stdout

hidden, verbs = json.loads(sys.argv[1]), json.loads(sys.argv[2])

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path = [Finder if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
from udp_stream.cli import main as cli, plan_of_feed
plan_of_feed.SLOTS = ()
for words in verbs:
    with redirect_stderr(io.StringIO()) as said, redirect_stdout(io.StringIO()) as out:
        try:
            status = cli.main(words)
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([words, status, out.getvalue(), said.getvalue()]), file=sys.__stdout__)
"""

NOWHERE = ("--set", "kafka.bootstrap=127.0.0.1:9")
VERBS = (
    ("init", "day.ndjson"),
    (
        "replay",
        "day.ndjson",
        "--ledger",
        "city.ledger",
        "--out",
        "out.ndjson",
        "--smoothed",
        "estimates.ndjson",
    ),
    ("replay", "day.ndjson", "--trial", "--out", "out.parquet"),
    ("replay", "day.pb", "--trial"),
    ("replay", "day.ndjson", "--set", "ledger.url=redis://127.0.0.1:9/0"),
    ("run", "day.ndjson", "--set", "ledger.url=run.ledger", "--out", "run.ndjson"),
    (
        "run",
        "http://127.0.0.1:9/x.pb",
        "--set",
        "ledger.url=b.ledger",
        "--set",
        "live.format=gtfs-rt",
    ),
    ("run", "mqtt://127.0.0.1:9", "--set", "ledger.url=b.ledger", "--set", 'live.topics=["a"]'),
    ("run", "amqp://127.0.0.1:9/", "--set", "ledger.url=b.ledger", "--set", "live.queue=a"),
    ("run", "day.ndjson", "--set", "ledger.url=run.ledger", "--metrics", "127.0.0.1:9"),
    ("demo", "--headless", "--slots", "1", "--buses", "20"),
    ("demo", "--kafka", "--slots", "1", "--buses", "20"),
    ("plan",),
    ("plan", "day.ndjson"),
    ("reproduce", "worst-case", "--plot", "a.png"),
    ("ledger", "verify", "--ledger", "city.ledger"),
    ("ledger", "export", "--ledger", "city.ledger"),
    ("ledger", "show", "--ledger", "city.ledger", "GJ05AB1234"),
    ("topics", "create", *NOWHERE),
    ("worker", "--set", "ledger.url=city.ledger", *NOWHERE),
    ("feed", "day.ndjson", *NOWHERE),
    ("releases", *NOWHERE),
    ("dashboard", "out.ndjson", "--set", "dashboard.listen=no.invalid:1"),
    ("dashboard", *NOWHERE),
    ("status", *NOWHERE),
    ("status", "--set", "ledger.url=city.ledger"),
    ("doctor", "--set", "ledger.url=city.ledger"),
    ("doctor", "day.ndjson", "--set", "ledger.url=city.ledger"),
    ("doctor", "--set", "ledger.url=city.ledger", *NOWHERE),
    ("config",),
    ("services",),
)
WITHOUT_KAFKA = {"status --set ledger.url=city.ledger", "doctor --set ledger.url=city.ledger"}


def installed(lines):
    """The packages of these requirements and all that they ask for, by the names by which they are
    imported."""
    found, asked = set(), [Requirement(line) for line in lines]
    while asked:
        one = asked.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        asked += map(Requirement, metadata.requires(one.name) or ())
    by_import = metadata.packages_distributions()
    return {name for name, of in by_import.items() if found & set(map(canonicalize_name, of))}


PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMED = re.compile(r"(?:\.|udp-stream)\[([a-z,]+)\]")
OF_VERBS = {
    "topics": "kafka", "worker": "kafka", "feed": "kafka", "releases": "kafka", "dashboard": "dashboard",
    "reproduce": "plots", "services": "services",
}  # fmt: skip
OF_WORDS = {
    r"(https?|mqtts?|amqps?)://|\S*\.pb$": "sources", r"rediss?://": "redis", r"--metrics": "metrics",
    r"\S*\.parquet": "parquet", r"--kafka|--services": "services", r"topics$": "kafka",
    r"kafka\.bootstrap=|--bootstrap": "kafka",
}  # fmt: skip


def extras_for(words):
    """Those that a command cannot do without."""
    words = words[:-1] if words[-1] == "&" else words
    needed = {OF_VERBS[words[0]]} if words[0] in OF_VERBS else set()
    if words[0] == "dashboard" and not any(word.endswith((".ndjson", ".csv")) for word in words):
        needed.add("kafka")
    read = {*words, *(word.rpartition("=")[2] for word in words)}
    return needed | {
        extra for form, extra in OF_WORDS.items() if any(re.match(form, word) for word in read)
    }


def commands_of(page):
    """Words of each command in the page's blocks, with the extras that the page names above it."""
    text = page.read_text("utf-8")
    for block in re.finditer(r"^```(?:console|sh|bash)\n(.*?)^```$", text, re.M | re.S):
        for line in re.finditer(
            r"^(?:\$ )?((?:\w+=\S+ |timeout \d+ )*udp-stream .*)$",
            block[1].replace("\\\n", "  "),
            re.M,
        ):
            words = shlex.split(line[1].split("  #")[0].split(" && ")[0].split(" | ")[0])
            words = [word for word in words[words.index("udp-stream") + 1 :] if word != "--quiet"]
            above = text[: block.start(1) + line.start()]
            yield words, {extra for names in NAMED.findall(above) for extra in names.split(",")}


def test_each_command_of_a_page_runs_in_the_install_that_stands_above_it():
    commands = [(page.name, words, there) for page in PAGES for words, there in commands_of(page)]
    assert len(commands) > 30
    lacking = {}
    for page, words, there in commands:
        there |= {"kafka"} if "services" in there else set()  # which has all of it
        there |= {"redis"} if "kafka" in there else set()
        if missing := extras_for(words) - there:
            lacking[f"{page}: {' '.join(words)}"] = missing
    assert lacking == {}


def said_by(extra, folder):
    extras = PROJECT["optional-dependencies"]
    there = [*PROJECT["dependencies"], *(extras[extra] if extra else ())]
    product = [
        line
        for name, lines in extras.items()
        if name not in ("test", "lint", "bench")
        for line in lines
    ]
    hidden = installed(product) - installed(there)
    verbs = [words for words in VERBS if words[0] != "services" or extra]
    (folder / "day.ndjson").write_bytes(b"\n".join(fleet_log(buses=40, hours=0.6, clean=True)))
    (folder / "day.pb").write_bytes(b"\x0a\x0d\x0a\x032.0\x10\x00\x18\xf0\xb1\xef\xab\x06")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(sorted(hidden)), json.dumps(verbs)],
        cwd=folder, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {
        " ".join(words): (status, out, said)
        for words, status, out, said in map(json.loads, done.stdout.splitlines())
    }


@pytest.mark.parametrize("extra", [*long_but([], ["", "kafka"]), *soaked(["sources", "dashboard"])])
def test_each_verb_says_what_it_needs_and_none_ends_with_a_fault(extra, tmp_path):
    found = said_by(extra, tmp_path)
    for words, (status, _, said) in found.items():
        assert status in (0, 2, 3, 4) and "a fault of" not in said, (words, status, said)
        if "pip install" in said:
            assert status == 4 and re.search(r"pip install '\.\[\w+\]'", said), (words, said)
            assert f"[{extra}]" not in said, words
            assert set(re.findall(r"pip install '\.\[(\w+)\]'", said)) <= extras_for(
                words.split()
            ), (words, said)
        if "127.0.0.1:9 " in f"{words} " and "kafka.bootstrap" in words:
            of_client = [line for line in said.splitlines() if "kafka." in line.partition(":")[2]]
            assert status == 4 and not of_client, (words, said)
    for words in WITHOUT_KAFKA:
        assert found[words][0] == 0, found[words]
    assert " recorded, " in found["status --set ledger.url=city.ledger"][1]
    lacks = {words for words, (_, out, said) in found.items() if "pip install" in said + out}
    assert any(words.startswith("worker") for words in lacks) == (extra != "kafka")
    assert any(words.startswith("run mqtt") for words in lacks) == (extra != "sources")
    assert any(words.startswith("dashboard out") for words in lacks) == (extra != "dashboard")
