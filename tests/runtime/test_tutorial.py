"""docs/tutorial.md, typed as it stands: every command runs, and says what the page says.

In a `console` block lines that begin with `$ ` are commands; those below are both outputs together,
on a plain terminal of 80 columns. `...` stands for any text, alone on a line for any lines; blanks
at ends do not count. A block behind `<!-- long: ... -->` is not typed (`test_installed.py`). The
page's port is replaced by a free one.
"""

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from udp_stream.cli.parsers import program

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
PORT = "8765"
BLOCK = re.compile(
    r"(?P<long><!-- long: [^>]* -->\n)?^```console\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Typed:
    command: str
    shown: tuple[str, ...]
    is_long: bool


def commands_of(page):
    found = []
    for block in BLOCK.finditer(page):
        for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            found.append(Typed(command, tuple(shown), bool(block["long"])))
    return found


COMMANDS = commands_of(PAGE.read_text(encoding="utf-8"))


def differences(shown, said):
    shown, said = ([line.rstrip() for line in lines if line.strip()] for lines in (shown, said))
    at = 0
    anywhere = False
    for line in shown:
        if line == "...":
            anywhere = True
            continue
        form = re.compile(".*".join(map(re.escape, line.split("..."))))
        hits = [number for number in range(at, len(said)) if form.fullmatch(said[number])]
        if not hits or (hits[0] != at and not anywhere):
            return line
        at, anywhere = hits[0] + 1, False
    return None if anywhere or at == len(said) else f"nothing more, and there is: {said[at]}"


def test_pages_are_compared_as_is_said_above():
    assert differences(("a", "b...d", "..."), ["a  ", "bcd", "x", "y"]) is None
    assert differences(("...", "z"), ["x", "y", "z"]) is None and differences((), []) is None
    assert differences(("a",), ["a", "b"]) == "nothing more, and there is: b"
    assert (
        differences(("a", "c"), ["a", "b", "c"]) == "c" and differences(("a.c",), ["abc"]) == "a.c"
    )


def test_every_command_of_the_page_is_one_that_there_is():
    assert len(COMMANDS) > 15 and sum(one.is_long for one in COMMANDS) == 3
    for typed in COMMANDS:
        words = shlex.split(typed.command.rstrip("&"))
        if "udp-stream" in words:
            words = words[words.index("udp-stream") + 1 :]
            assert (
                program().parse_args(words[: words.index(">")] if ">" in words else words).command
            )
        if "../examples/my_city.py" in words:
            assert (ROOT / "examples" / "my_city.py").is_file()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "bin").mkdir()
    for name, module in (("udp-stream", "-m udp_stream "), ("python", "")):
        file = tmp_path / "bin" / name
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        file.chmod(0o755)
    return tmp_path


class Shell:
    def __init__(self, folder):
        self.folder = folder
        self.left = []
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self.environment = {
            **os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "TERM": "dumb", "NO_COLOR": "1",
        }  # fmt: skip

    def type(self, command):
        if command.startswith("cd "):
            self.folder = self.folder / command.removeprefix("cd ")
            return []
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.rstrip('& ')}" if command.endswith("&") else command], cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.left.append((process, ours))
        if command.endswith("&"):
            return []
        said = b""
        with suppress(OSError):  # the terminal's other end is closed
            while piece := os.read(ours, 4096):
                said += piece
        assert process.wait(60) in (0, 124 if command.startswith("timeout") else 0), said.decode()
        return said.decode().replace("\r\n", "\n").splitlines()

    def end(self):
        for process, ours in self.left:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
            os.close(ours)


@pytest.mark.long
def test_the_page_does_and_says_what_it_shows(folder):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shell = Shell(folder)
    try:
        for typed in COMMANDS:
            if typed.is_long:
                continue
            said = [
                line.replace(port, PORT) for line in shell.type(typed.command.replace(PORT, port))
            ]
            assert (missing := differences(typed.shown, said)) is None, (
                typed.command,
                missing,
                said,
            )
    finally:
        shell.end()
