"""Which ledger belongs to a plate key: its id, in a file beside the key, by which one that is gone is noticed.

A ledger that is wiped, removed or on a volume that is not mounted looks like one that was never made. Made anew, it
would give every plate its budget again and draw every HAT a second time; so where a ledger is known, none is made.
"""

from __future__ import annotations

import os
from pathlib import Path

from udp_stream.adapters.drafts import draft_of, sync_directory
from udp_stream.errors import DependencyUnavailable, PrivacyRefused


def gone(place: str | os.PathLike[str], ledger_id: str) -> PrivacyRefused:
    """The refusal where a ledger was and is not any more."""
    return PrivacyRefused(
        f"expected the ledger {ledger_id} at {place}, got none or another one: it has been wiped or is not mounted; "
        "restore it. Another ledger gives every plate a new budget and draws released HATs again: to begin with one "
        "all the same, remove the plates' key and the .ledger-id beside it, or set another ledger.key_file"
    )


def known_ledger(id_file: str | os.PathLike[str] | None) -> str | None:
    """The id of the ledger that was used with this file before; None if none was, or no file is kept.

    Raises DependencyUnavailable if the file cannot be read, PrivacyRefused if it is empty.
    """
    if id_file is None:
        return None
    try:
        known = Path(id_file).read_text("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DependencyUnavailable(f"the file {id_file} of the ledger's id cannot be read") from error
    if not known:
        raise PrivacyRefused(f"expected the ledger's id in {id_file}, got an empty file: restore it")
    return known


def remember_ledger(id_file: str | os.PathLike[str], ledger_id: str) -> None:
    """Keep the id outside of the ledger, on disk when this returns; DependencyUnavailable if that cannot be done.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     remember_ledger(f"{folder}/id", "5eed")
    ...     known_ledger(f"{folder}/id")
    '5eed'
    """
    path = Path(id_file)
    try:
        with draft_of(path) as draft:
            with draft.open("x", encoding="ascii") as file:
                file.write(f"{ledger_id}\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            sync_directory(path.parent)
    except OSError as error:
        raise DependencyUnavailable(
            f"the file {path} for the ledger's id cannot be written: {error.strerror}"
        ) from error
