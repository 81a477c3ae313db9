"""`demo`: a synthetic Surat-like fleet, no services, no files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from udp_stream.adapters.embedded import Embedded, Payloads
from udp_stream.adapters.entropy import OsEntropy
from udp_stream.adapters.fleet import IST, Fleet
from udp_stream.adapters.open_ledger import ledger_and_keys
from udp_stream.adapters.report import SOFTWARE, console, print_summary
from udp_stream.adapters.settings import Settings
from udp_stream.errors import UsageError
from udp_stream.release import decode

MORNING = datetime(2024, 1, 8, 6, tzinfo=IST)


def demo(arguments: argparse.Namespace, settings: Settings) -> None:
    """Run the fleet's day through the embedded runtime and show what one busy cell came out like."""
    if not arguments.headless:
        raise UsageError("the live map is not in this version; run: udp-stream demo --headless")
    fleet = Fleet(
        seed=arguments.seed,
        buses=arguments.buses,
        start=MORNING,
        hours=arguments.slots * settings.policy.slot_seconds / 3600,
    )
    shown: list[bytes] = []
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="udp-stream-demo-"))
        ledger, keys = stack.enter_context(ledger_and_keys(settings, arguments.ledger or f"{folder}/demo.ledger"))
        out = stack.enter_context(Path(arguments.out).open("wb")) if arguments.out else None

        def publish(payloads: Payloads) -> None:
            shown.extend(payload for _, _, payload in payloads)
            if out is not None:
                out.write(b"".join(payload + b"\n" for _, _, payload in payloads))

        runtime = Embedded(settings, ledger, OsEntropy(), keys.key_of, SOFTWARE, publish)
        summary = runtime.run(_told(fleet.messages(), runtime, arguments))
    print(picture(shown))
    print_summary(summary, settings)


def _told(frames: Iterator[list[bytes]], runtime: Embedded, arguments: argparse.Namespace) -> Iterator[list[bytes]]:
    with console().status("") as status:
        for frame in frames:
            yield frame
            done = f"{runtime.summary.pings:,} pings, {runtime.summary.slots} of about {arguments.slots} slots released"
            status.update(f"a synthetic fleet of {arguments.buses} buses: {done}")


def picture(payloads: list[bytes]) -> str:
    """The busiest cell's hours as text: the private mean, its 95 % interval, and who was there."""
    records = [decode(payload) for payload in payloads]
    busiest: dict[str, int] = {}
    for record in records:
        busiest[record.hat.cell] = busiest.get(record.hat.cell, 0) + record.counts.plates
    if not busiest:
        return "nothing was released"
    cell = max(busiest, key=lambda name: busiest[name])
    lines = [f"cell {cell}, slot by slot: private mean speed and 95 % interval, 0 to 65 km/h"]
    for record in records:
        if record.hat.cell != cell:
            continue
        hour = record.hat.slot_start[11:16]
        if record.mean is None:
            lines.append(f"{hour}  {record.status.replace('_', ' ')} ({record.counts.plates} plates)")
            continue
        low, high = record.mean.interval95_kmh
        bar = "".join(
            "●" if at == round(record.mean.value_kmh) else "─" if low <= at <= high else " " for at in range(66)
        )
        lines.append(f"{hour} |{bar}| {record.mean.value_kmh:5.1f}  {record.counts.plates:3d} plates")
    return "\n".join(lines)
