"""Workers with a ledger or key of their own, by the real command line: each is to be refused, and
to end."""

import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from tests.chaos.checks import Stranger
from tests.chaos.city import BROKEN, City
from tests.chaos.proxy import Link
from tests.chaos.workers import SERVING
from udp_stream.ledgers.opening import ledger_and_keys

END_S = 90.0
"""Starting takes seconds, and so long at most it asks a broker or a Redis that is away."""
AT_ONCE = 2
"""More would take the workers' time."""
SOUND = ("-m", "udp_stream")


@dataclass
class _Started:
    kind: str
    folder: Path
    process: subprocess.Popen[bytes]
    key: bytes | None

    @property
    def key_file(self) -> Path:
        return self.folder / "plates.key"

    @property
    def told(self) -> str:
        return (self.folder / "said").read_text(errors="replace")


@dataclass
class Strangers:
    """All that came; use it as a context manager."""

    city: City
    fault: str | None = None
    _came: list[_Started] = field(default_factory=list)
    _link: Link | None = None

    def __enter__(self) -> "Strangers":
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._came:
            one.process.kill()
            one.process.wait()

    @property
    def crowded(self) -> bool:
        return sum(one.process.poll() is None for one in self._came) >= AT_ONCE

    def on_another_ledger(self) -> None:
        """As an operator has it who names a file where the others have their Redis."""
        folder = self._folder()
        self._start(
            "another ledger", folder, f"sqlite:{folder}/own.ledger", "--set", "ledger.replicas=0"
        )

    def with_another_key(self, made_before: bool) -> None:
        """On the deployment's own ledger, from a machine that has another key, or none."""
        folder = self._folder()
        if made_before:
            (folder / "plates.key").write_text(secrets.token_hex(32))
            (folder / "plates.key").chmod(0o600)
        self._link = self._link or self.city.ground.store.link()
        self._start(
            "another key" if made_before else "no key", folder, self.city.ledger_url(self._link)
        )

    def _folder(self) -> Path:
        folder = self.city.folder / f"stranger-{len(self._came)}"
        folder.mkdir()
        return folder

    def _start(self, kind: str, folder: Path, ledger: str, *more: str) -> None:
        key = folder / "plates.key"
        before = key.read_bytes() if key.exists() else None
        sets = [
            "--set",
            f"kafka.bootstrap={self.city.ground.proxied}",
            "--set",
            f"ledger.key_file={key}",
            *more,
        ]
        program = (
            SOUND
            if self.fault is None
            else (str(BROKEN), self.fault, str(self.city.session_s), str(self.city.stuck_s))
        )
        sets += ["--set", f"ledger.url={ledger}"]
        command = [sys.executable, *program, "worker", "--config", str(self.city.config), *sets]
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder)
        self._came.append(_Started(kind, folder, process, before))

    def seen(self, end_s: float = END_S) -> Sequence[Stranger]:
        deadline = time.monotonic() + end_s
        while any(one.process.poll() is None for one in self._came) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [self._seen(one) for one in self._came]

    def _seen(self, one: _Started) -> Stranger:
        status = one.process.poll()
        one.process.kill()
        one.process.wait()
        key = one.key_file.read_bytes() if one.key_file.exists() else None
        own = one.kind == "another ledger"
        return Stranger(
            f"{one.folder.name} with {one.kind}", status, SERVING in one.told, self._admitted(one) if own else 0,
            key_changed=not own and key != one.key, told=one.told,
        )  # fmt: skip

    def _admitted(self, one: _Started) -> int:
        if not (one.folder / "own.ledger").exists():
            return 0
        url, key_file = f"sqlite:{one.folder}/own.ledger", str(one.key_file)
        section = replace(self.city.settings.ledger, url=url, key_file=key_file, replicas=0)
        with ledger_and_keys(section) as (ledger, _):
            return ledger.progress().admitted
