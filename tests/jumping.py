"""The command line, on a machine whose clock is as wrong as the file `wrong_s` in its folder says; empty for not."""

import time
from pathlib import Path

from tests import forked


def main(*arguments: str) -> int:
    real, wrong = time.time, Path("wrong_s").resolve()
    time.time = lambda: real() + float(wrong.read_text() or 0)
    return forked.main(*arguments)
