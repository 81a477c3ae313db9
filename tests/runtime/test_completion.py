"""`completion`: what a person's shell completes, in a real shell, at a real terminal."""

import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest

from udp_stream.cli import main as cli
from udp_stream.cli.commands.completion_parser import SHELLS
from udp_stream.cli.options import verbs_of

SAID = "udp-stream() { printf 'given:'; printf ' <%s>' \"$@\"; echo; }"
"""In the place of the program: what it was given."""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The three scripts, in a folder with a file and a folder."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        command = [sys.executable, "-m", "udp_stream", "completion", shell]
        (folder / shell).write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    (folder / "monday.ndjson").touch()
    (folder / "journals").mkdir()
    return folder


def typed_into_bash(folder, *lines):
    """What the program is given by each of these lines, typed at a terminal, where \\t asks for completion."""
    ours, theirs = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "INPUTRC": "/dev/null", "HISTFILE": ""}
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
        env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, "\n".join(["source ./bash", SAID, *lines, "exit", ""]).encode())
    said = b""
    with suppress(OSError):  # the terminal's other end is closed
        while piece := os.read(ours, 4096):
            said += piece
    os.close(ours)
    assert bash.wait(20) is not None
    return re.findall(r"^given:(.*?)\r?$", said.decode(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_verbs_options_files_and_folders(scripts):
    given = typed_into_bash(
        scripts,
        "udp-stream dem\t",
        "udp-stream ledger sh\t",
        "udp-stream replay --tri\t",
        "udp-stream config check --js\t",
        "udp-stream replay mon\t",
        "udp-stream run - --journal jour\t",
        "udp-stream completion fi\t",
    )
    assert [line.strip() for line in given] == [
        "<demo>", "<ledger> <show>", "<replay> <--trial>", "<config> <check> <--json>", "<replay> <monday.ndjson>",
        "<run> <-> <--journal> <journals/>", "<completion> <fish>",
    ]  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_option_is_in_the_script_of_each_shell(shell, scripts):
    text = (scripts / shell).read_text()
    pending = [cli._parser()]
    while pending:
        parser = pending.pop()
        for name, below in verbs_of(parser).items():
            assert name in text
            pending.append(below)
        for option in (word for action in parser._actions for word in action.option_strings):
            assert option in text or option.lstrip("-") in text


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_the_script_is_one_of_its_shell(shell, check, scripts):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    subprocess.run([shell, check, scripts / shell], check=True, timeout=20)
