"""The page's head as its owner wants it, and whom a browser may ask for tiles."""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'"
TITLE = "Bus speeds"

_HOST = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(?=/)")


def host_of(tiles: str) -> str | None:
    """Scheme, host and port of the address of tiles; None for what is none."""
    found = _HOST.match(tiles)
    has_all = all(part in tiles for part in ("{z}", "{x}", "{y}"))
    # No quote, angle bracket, space or letter beyond ASCII.
    is_plain = re.fullmatch(r"[!#-;=?-~]+", tiles) is not None
    return found[0] if found and has_all and is_plain else None


class Branding(NamedTuple):
    """Texts of the page's owner on it; `tiles`: an address with {z}, {x} and {y}, or empty.

    >>> Branding(tiles="https://tiles.example.org/{z}/{x}/{y}.png").policy[-48:]
    "'none'; img-src 'self' https://tiles.example.org"
    """

    title: str = ""
    note: str = ""
    tiles: str = ""
    credit: str = ""

    @property
    def policy(self) -> str:
        return f"{POLICY}; img-src 'self' {host_of(self.tiles)}" if self.tiles else POLICY

    def page(self, html: bytes) -> bytes:
        """The page with all this in its places."""
        changes = dict[str, str]()
        if self.title:
            changes |= {f">{TITLE}<": f">{escape(self.title)}<"}
        if self.note:
            changes |= {'<p id="note" hidden>': f'<p id="note">{escape(self.note)}'}
        if self.tiles:
            changes |= {'<div id="map"': f'<div id="map" data-tiles="{escape(self.tiles)}"'}
            said = f"Map: {self.credit}. " if self.credit else ""
            says = f"{said}Its tiles come from {host_of(self.tiles)}, which sees where you look."
            changes |= {'<p id="tiles" hidden>': f'<p id="tiles">{escape(says)}'}
        text = html.decode()
        for before, after in changes.items():
            text = text.replace(before, after)
        return text.encode()
