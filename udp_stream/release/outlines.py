"""Zones keep their outlines within a budget period: a HAT's id names a zone, and the ledger has a
HAT once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from udp_stream.errors import PrivacyRefused
from udp_stream.ledger.port import Ledger
from udp_stream.windows.grid import Grid

OUTLINES_NOTE = "zones:"
"""The prefix, before a grid's digest, of a ledger's note of its outlines by id."""

PERIOD_NOTE = "zoned:"
"""The prefix, before a digest, a colon and a period, of a ledger's note that the grid was used."""


def require_unmoved(period: str, grid: Grid, ledger: Ledger, meta: Mapping[str, str]) -> None:
    """PrivacyRefused if a zone was released in this period with another outline; otherwise note the
    outlines. `meta` is what the ledger knows of itself, read before this."""
    outlines = grid.outlines_by_id
    if not outlines or f"{PERIOD_NOTE}{grid.digest}:{period}" in meta:
        return
    for name in meta:
        digest, _, noted = name.removeprefix(PERIOD_NOTE).partition(":")
        if not name.startswith(PERIOD_NOTE) or noted != period:
            continue
        known = msgspec.json.decode(meta[f"{OUTLINES_NOTE}{digest}"], type=dict[str, str])
        moved = sorted(
            id_ for id_, outline in outlines.items() if known.get(id_, outline) != outline
        )
        if moved:
            raise PrivacyRefused(
                f"hat.zones: {', '.join(moved[:5])} had another outline earlier in {period}: name a moved zone anew, "
                "or go on with the old file until the period is over"
            )
    ledger.note(f"{OUTLINES_NOTE}{grid.digest}", msgspec.json.encode(dict(outlines)).decode())
    ledger.note(f"{PERIOD_NOTE}{grid.digest}:{period}", "")
