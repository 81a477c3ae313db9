"""The ledger's Lua scripts, as they lie beside this file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

SCRIPTS = ("open", "note", "epoch", "admit", "record", "snapshot", "progress")
UNGUARDED = ("open",)


class Script(NamedTuple):
    """A script's text, and the name that the server gives it."""

    text: str
    sha: str


@cache
def load_scripts() -> Mapping[str, Script]:
    """Our scripts by name; all but the one that makes a ledger stand behind the guard."""
    folder = resources.files(__package__)
    texts = {name: (folder / f"{name}.lua").read_text("utf-8") for name in ("guard", *SCRIPTS)}
    return scripts_of({name: texts[name] if name in UNGUARDED else texts["guard"] + texts[name] for name in SCRIPTS})


def scripts_of(texts: Mapping[str, str]) -> Mapping[str, Script]:
    """Scripts of these texts."""
    return {
        # SHA-1 because Redis names scripts by it.
        name: Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        for name, text in texts.items()
    }
