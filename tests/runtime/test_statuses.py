"""Exit statuses, over all verbs; `--quiet` and `--json`, over those that say much."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.forked import Forked
from tests.runtime.harness import fleet_log, ledger_at
from tests.runtime.test_cli import run
from udp_stream.base.logs import is_quiet
from udp_stream.cli import main as cli
from udp_stream.release.city import ShapeQuestion

NEEDED = {
    "init": ["pings.ndjson"], "replay": ["pings.ndjson"], "run": ["-"], "ledger show": ["GJ05ZZ0001"],
    "ledger archive": ["--before", "2024-01-01"], "ledger withdraw": ["--reason", "wrong", "--cell", "x"],
}  # fmt: skip

VERBS = (
    "init", "replay", "run", "demo", "plan", "reproduce", "ledger show", "ledger verify", "ledger export",
    "ledger accept-older", "ledger releases", "ledger archive", "ledger withdraw", "topics create", "worker",
    "feed", "releases", "dashboard", "status", "doctor", "services", "config",
)  # fmt: skip


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    folder = tmp_path_factory.mktemp("city")
    (folder / "pings.ndjson").write_bytes(b"\n".join(fleet_log(hours=0.6)) + b"\n")
    assert (
        run(
            "replay", "pings.ndjson", "--ledger", "l", "--out", "out", *FLAGS, cwd=folder
        ).returncode
        == 0
    )
    return folder


FLAGS = ("--set", "hat.slot=15m", "--set", "release.min_plates=4")


def status_of(*words):
    try:
        return cli.main(words)
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize("verb", VERBS)
def test_an_invalid_configuration_is_one_for_every_verb_that_reads_it(
    verb, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    status = status_of(*verb.split(), *NEEDED.get(verb, []), "--set", "hat.resolution=99")
    out, err = capsys.readouterr()
    assert status == 3 and "hat.resolution" in out + err
    assert list(tmp_path.iterdir()) == []


NOWHERE = ("--set", "kafka.bootstrap=127.0.0.1:1")


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "pings.ndjson", "--ledger", "no/such/l"),
        ("run", "pings.ndjson", "--ledger", "no/such/l"),
        ("demo", "--headless", "--slots", "1", "--ledger", "no/such/l"),
        (
            "ledger",
            "verify",
            "--set",
            "ledger.url=redis://127.0.0.1:1/0",
            "--set",
            "ledger.key_file=l.key",
        ),
        (
            "doctor",
            "pings.ndjson",
            "--set",
            "ledger.url=redis://127.0.0.1:1/0",
            "--set",
            "ledger.key_file=l.key",
        ),
        ("topics", "create", *NOWHERE),
        ("releases", *NOWHERE),
        ("dashboard", *NOWHERE, "--set", "dashboard.listen=127.0.0.1:0"),
        ("feed", "pings.ndjson", *NOWHERE),
    ],
    ids=lambda words: words[0],
)
def test_what_is_not_there_is_a_dependency(words, city):
    done = run(*words, cwd=city)
    assert done.returncode == 4, done.stderr
    assert b"Traceback" not in done.stderr and (words[0] == "doctor" or done.stdout == b"")


@pytest.mark.parametrize(
    "words", [("replay", "pings.ndjson"), ("ledger", "verify"), ("run", "pings.ndjson")], ids=str
)
def test_a_ledger_without_its_key_is_refused(words, city, tmp_path):
    for name in ("pings.ndjson", "l"):
        (tmp_path / name).write_bytes((city / name).read_bytes())
    done = run(*words, "--ledger", "l", cwd=tmp_path)
    assert done.returncode == 5 and b"key of the ledger's" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("replay", "-", "--trial"), ("run", "-", "--ledger", "live")],
    ids=lambda words: words[0],
)
def test_ctrl_c_is_an_interruption(words, tmp_path):
    reads, writes = os.pipe()
    with Path(os.devnull).open("wb") as nothing, (tmp_path / "said").open("wb") as said:
        process = Forked("tests.forked", words, [reads, nothing.fileno(), said.fileno()], tmp_path)
    os.close(reads)
    try:
        deadline = time.monotonic() + 30
        while not re.search(rb"ledger .*new", (tmp_path / "said").read_bytes()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        time.sleep(0.2)  # it waits for its input now, or soon
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert b"Traceback" not in (tmp_path / "said").read_bytes()
    finally:
        process.kill()
        os.close(writes)


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "pings.ndjson", "--ledger", "l", *FLAGS), ("replay", "pings.ndjson", "--dry-run", *FLAGS),
        ("ledger", "verify", "--ledger", "l"), ("ledger", "show", "nobody", "--ledger", "l"),
        ("init", "pings.ndjson"),
    ],
    ids=str,
)  # fmt: skip
def test_quiet_leaves_results_and_says_nothing_else(words, city):
    loud, quiet = run(*words, cwd=city), run("--quiet", *words, cwd=city)
    assert (loud.returncode, quiet.returncode, quiet.stderr) == (0, 0, b"")
    assert loud.stderr and (quiet.stdout == loud.stdout or "--dry-run" in words)


def test_a_city_s_answer_that_was_not_paid_for_ends_with_5_and_is_not_drawn(
    tmp_path, monkeypatch, planted, capsys
):
    ask = ShapeQuestion.ask
    underpaid = lambda self, *given: (  # noqa: E731
        (plan := ask(self, *given)) and replace(plan, charged=np.ones_like(plan.charged))
    )
    planted(ShapeQuestion, ask=underpaid)
    (tmp_path / "pings.ndjson").write_bytes(b"\n".join(fleet_log(buses=120, hours=0.5, clean=True)))
    files = (
        str(tmp_path / "pings.ndjson"),
        "--ledger",
        str(tmp_path / "l"),
        "--out",
        str(tmp_path / "out"),
    )
    assert status_of("replay", *files, "--set", "hat.slot=15m") == 5
    assert "city:" in capsys.readouterr().err and (tmp_path / "out").read_bytes() == b""
    with ledger_at(tmp_path / "l") as (ledger, _):
        assert {entry.payload for entry in ledger.entries()} == {None}


def test_after_a_quiet_verb_its_process_is_not_quiet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert status_of("--quiet", "config") == 0 and not is_quiet()


@pytest.mark.parametrize("verb", ["replay", "demo", "kafka"])
def test_a_verb_that_releases_never_loads_seeded_bits(verb):
    program = (
        f"import sys, udp_stream.cli.main, udp_stream.cli.commands.{verb}; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "udp_stream.ledgers.keys" in loaded and "udp_stream.testing" not in loaded


@pytest.mark.parametrize(
    "arguments", [["--help"], ["replay", "--help"], ["worker", "--no-such-option"]], ids=str
)
def test_help_and_usage_import_neither_arrays_nor_clients(arguments):
    program = (
        "import sys, udp_stream.cli.main as cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: print('imported:', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    loaded = done.stdout.partition("imported:")[2].split()
    assert "udp_stream.cli.main" in loaded
    assert not {"numpy", "h3", "msgspec", "faust", "kafka", "redis"} & set(loaded)
