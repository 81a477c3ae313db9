"""Files that are whole or not there, secrets in files, TLS, and the heartbeat file."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udp_stream.base.errors import ConfigError

if TYPE_CHECKING:
    import ssl


@contextmanager
def draft_of(path: Path, *suffixes: str) -> Iterator[Path]:
    """A free name beside the path, to make the file under. Afterwards what is left there is
    removed, and with these suffixes.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "ledger")
    ...     with draft_of(file) as draft:
    ...         _ = draft.write_text("whole")
    ...         link_first(draft, file)
    ...     [each.name for each in Path(folder).iterdir()]
    ['ledger']
    """
    # Two processes may make the same file at once.
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}.draft")
    try:
        yield draft
    finally:
        for suffix in ("", *suffixes):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


@contextmanager
def named(name: str | Path) -> Iterator[None]:
    """Put the name of this file into an OSError that is raised inside and has none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(name)
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or replace it: after a power cut either is there, whole."""
    with named(path), draft_of(path) as draft:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            # Synced before it is renamed: else the name could be there without the content.
            os.fsync(file.fileno())
        draft.rename(path)
    sync_directory(path.parent)


def bytes_of(files: Iterable[Path]) -> int:
    """Bytes of these files, without those that are gone meanwhile."""
    size = 0
    for file in files:
        with suppress(OSError):
            size += file.stat().st_size
    return size


def link_first(draft: Path, path: Path) -> None:
    """Give a finished draft its name, unless another process was first: then that process's file
    stands.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for text in ("first", "second"):
    ...         _ = Path(folder, text).write_text(text)
    ...         link_first(Path(folder, text), Path(folder, "ledger"))
    ...     Path(folder, "ledger").read_text()
    'first'
    """
    with suppress(FileExistsError):
        # A link and not a rename: a rename would replace the file of the process that was first.
        os.link(draft, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync the names in a directory to disk, so that a new file in it survives the machine; OSError
    may leave."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with named(directory):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Secrets come from files alone: others can read a command line and often an environment, and
# configurations are copied. An error names the key and the file, never anything of its content.

SECRET_CHARS_MAX = 16_384

TLS_FILES = {
    "kafka": ("client.ssl_cafile", "client.ssl_certfile", "client.ssl_keyfile"),
    "ledger": ("client.ssl_ca_certs", "client.ssl_certfile", "client.ssl_keyfile"),
    "live": ("ca_file", "", ""),
}
"""Keys by section of the authorities to trust, of a certificate of ours, and of its key: files in
PEM form."""


def secret_of(key: str, file: str) -> str:
    """The secret in a file that this configuration key names: a line, without white space around
    it.

    ConfigError, without anything of its content, if there is none, or if others may read the file.
    """
    if may_be_secret(file):
        rule = "expected the path of a file, got none that is in this folder"
        raise ConfigError(f"{key}: {rule} (it is not shown: it might be the secret itself)")
    require_private(key, file)
    try:
        text = Path(file).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        text = "\n"  # refused below: this error's text would quote a byte of the secret
    if not text or not text.isprintable() or len(text) > SECRET_CHARS_MAX:
        got = "something else" if text else "nothing"
        raise ConfigError(
            f"{key}: expected one line of printable ASCII in {file}, got {got}"
        ) from None
    return text


def with_secrets(section: str, client: Mapping[str, Any]) -> dict[str, Any]:
    """A client's options with the secret instead of its file: `password` for `password_file`.
    ConfigError as of `secret_of`.

    >>> with_secrets("ledger", {"username": "udp-ledger"})
    {'username': 'udp-ledger'}
    """
    return {
        name.removesuffix("_file"): secret_of(f"{section}.client.{name}", value)
        if name.endswith("_file")
        else value
        for name, value in client.items()
    }


def may_be_secret(file: str) -> bool:
    """Whether what stands in the place of a file's name may be the secret itself: it is no path,
    and no file here.

    >>> may_be_secret("hunter2"), may_be_secret("/run/secrets/kafka"), may_be_secret("")
    (True, False, False)
    """
    return bool(file) and os.sep not in file and not os.path.lexists(file)


def require_private(key: str, file: str) -> None:
    """Raise ConfigError if anyone but its owner may read the file. A group may read a file of
    root's: so Kubernetes and systemd hand secrets to a program that is not root."""
    try:
        found = Path(file).stat()
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read ({error.strerror})") from error
    handed = found.st_uid == 0 and os.geteuid() != 0
    forbidden = (stat.S_IRWXG if not handed else stat.S_IWGRP | stat.S_IXGRP) | stat.S_IRWXO
    if stat.S_ISREG(found.st_mode) and found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(
            f"{key}: expected a file that only its owner can read, got mode {mode:04o} of {file}: chmod 600 {file}"
        )


def tls_context(
    section: str, ca_file: str = "", certificate_file: str = "", certificate_key_file: str = ""
) -> ssl.SSLContext:
    """Context that verifies certificates and names: against the system's authorities, or those in
    `ca_file`.

    With a certificate of our own, servers that ask for a certificate are shown it. Raises
    ConfigError for a file that cannot be used, by its key in this section of the configuration.
    """
    import ssl  # slow to load: every verb reads this file, and few speak TLS

    of_ca, of_certificate, of_key = (f"{section}.{key}" for key in TLS_FILES[section])
    pem = "expected certificates in PEM form"
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"{of_ca}: {ca_file}: {pem} ({_why(error)})") from error
    if certificate_file:
        require_private(of_key, certificate_key_file)
        try:
            # A key with a passphrase would be asked for on the terminal.
            context.load_cert_chain(certificate_file, certificate_key_file, password=b"")
        except OSError as error:
            rule = f"expected a certificate in PEM form and its key in {certificate_key_file}, without a passphrase"
            raise ConfigError(
                f"{of_certificate}: {certificate_file}: {rule} ({_why(error)})"
            ) from error
    return context


def _why(error: OSError) -> str:
    """Reason of an SSL error. OpenSSL's texts name its source lines; its reasons, and the system's,
    say what is wrong."""
    return getattr(error, "reason", None) or error.strerror or type(error).__name__


BEAT_S = 2.0

SILENT_S = 30.0
"""A heartbeat that is older belongs to work that is stuck or gone."""

ALIVE = "alive"
"""The heartbeat file of a live run, in its journal's folder; a run that ends by itself takes it
away."""


@dataclass
class Heartbeat:
    """Heartbeat file, touched at most every two seconds. A supervisor that finds it old knows that
    we are stuck or gone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Heartbeat(Path(folder, "alive")).beat()
    ...     Path(folder, "alive").exists()
    True
    """

    file: Path | None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._touched_s: float | None = None

    def beat(self) -> None:
        """Raise OSError if the file cannot be touched."""
        if self.file is None or (
            self._touched_s is not None and self.clock() - self._touched_s < BEAT_S
        ):
            return
        self.file.touch()
        self._touched_s = self.clock()
