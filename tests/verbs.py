"""The command line in this process; a worker has a process of its own. Exit status, signals and
pipes: elsewhere."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from unittest.mock import patch

from tests.forked import run_forked
from udp_stream.cli.main import main


def run_verb(
    arguments: Sequence[object],
    *,
    cwd: Path,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> CompletedProcess[bytes]:
    """As `subprocess.run` would have it. Its standard streams are files, under the numbers that
    they have anywhere."""
    words = [str(word) for word in arguments]
    if "worker" in words:
        return run_forked(words, cwd=cwd, stdin=stdin, env=env)
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin or b"")
        given.seek(0)
        with chdir(cwd), _environment(env), _streams(given.fileno(), out.fileno(), err.fileno()):
            try:
                status = main(words)
            except SystemExit as ended:  # of argparse
                status = ended.code
        out.seek(0)
        err.seek(0)
        return CompletedProcess(words, status, out.read(), err.read())


@contextmanager
def _environment(env: Mapping[str, str] | None) -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with patch.dict(os.environ, os.environ if env is None else env, clear=True):
            time.tzset()
            yield
    finally:
        time.tzset()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _streams(*theirs: int) -> Iterator[None]:
    with ExitStack() as stack:
        for number, (stream, name) in enumerate(
            zip(theirs, ("stdin", "stdout", "stderr"), strict=True)
        ):
            ours = os.dup(number)
            stack.callback(os.close, ours)
            stack.callback(os.dup2, ours, number)
            os.dup2(stream, number)
            file = stack.enter_context(open(number, "w" if number else "r", closefd=False))
            stack.enter_context(patch.multiple(sys, **{name: file, f"__{name}__": file}))
        yield
        sys.stdout.flush()
        sys.stderr.flush()
