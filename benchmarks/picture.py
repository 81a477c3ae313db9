"""`python -m benchmarks.picture docs/demo.svg`: what `make demo` prints, as the README's picture."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.words import words

WIDTH = 114
"""As the longest line that the demo prints."""


def main(target: str) -> None:
    command = [sys.executable, "-m", "udp_stream", "demo", "--headless", "--slots", "3"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    )
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print("$ make demo\n" + done.stdout + "\n" + done.stderr, markup=False)
    drawn = console.export_svg(title="udp-stream demo")
    Path(target).write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main(*words(__doc__, "FILE", 1))
