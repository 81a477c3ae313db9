"""What a process has loaded: help is quick, and a verb that releases has no seeded bits."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("verb", ["replay", "demo", "kafka"])
def test_a_verb_that_releases_never_loads_seeded_bits(verb):
    program = f"import sys, udp_stream.cli.main, udp_stream.cli.commands.{verb}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "udp_stream.ledgers.keys" in loaded and "udp_stream.testing" not in loaded


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--help"], ["worker", "--no-such-option"]], ids=str)
def test_help_and_usage_import_neither_arrays_nor_clients(arguments):
    program = (
        "import sys, udp_stream.cli.main as cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: print('imported:', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    loaded = done.stdout.partition("imported:")[2].split()
    assert "udp_stream.cli.main" in loaded
    assert not {"numpy", "h3", "msgspec", "faust", "kafka", "redis"} & set(loaded)
