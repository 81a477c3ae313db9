"""A command on a terminal of its own."""

import os
import pty
import subprocess
import sys
from contextlib import contextmanager, suppress


@contextmanager
def on_terminal(*command, cwd, **environment):
    theirs_only = {
        name: text
        for name, text in os.environ.items()
        if name not in ("CI", "DISPLAY", "WAYLAND_DISPLAY")
    }
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=theirs_only | environment,
    )
    os.close(theirs)

    def read():
        with suppress(OSError):  # the other end is closed
            return os.read(ours, 4096)
        return b""

    try:
        yield process, read
    finally:
        process.kill()
        process.wait()
        os.close(ours)
