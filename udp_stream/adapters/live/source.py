"""A live source: one that goes on until it is stopped, and what such sources share."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Protocol

from udp_stream.adapters.schemes import Source
from udp_stream.errors import ConfigError

SECRET_CHARS_MAX = 16_384


class LiveSource(Source, Protocol):
    """A source whose frames are acknowledged. `messages` runs in one thread, the other methods in another.

    A frame may be empty: it is acknowledged like the others.
    """

    def kept(self, frames: int) -> None:
        """The first `frames` frames that it gave are where no crash loses them: acknowledge them where that is done."""
        ...

    def stop(self, wait: bool = True) -> None:
        """Give no more frames, and end: once those given are kept, or soon, or without `wait` at once. Safe to
        repeat."""
        ...


class Failed(Exception):
    """A source could not be read. It never leaves this room.

    `sentence` goes on behind the source's name and has no content of it. `is_final`: to try again is no use until a
    person has changed something. `wait_s`: how long the server asks to be left alone.
    """

    def __init__(self, sentence: str, *, is_final: bool = False, wait_s: float | None = None) -> None:
        """`wait_s` of None: it did not say."""
        super().__init__(sentence)
        self.sentence, self.is_final, self.wait_s = sentence, is_final, wait_s


def secret_of(key: str, file: str) -> str:
    """The secret in a file that this configuration key names: one line, without white space around it.

    ConfigError, without anything of its content, if there is none.
    """
    try:
        text = Path(file).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or len(text) > SECRET_CHARS_MAX:
        raise ConfigError(f"{key}: expected one line of printable ASCII in {file}, got something else")
    return text


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Verifies certificates and names: against the system's authorities, or those in a file (`live.ca_file`)."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        rule = f"expected certificates in PEM form ({type(error).__name__})"
        raise ConfigError(f"live.ca_file: {ca_file}: {rule}") from error
