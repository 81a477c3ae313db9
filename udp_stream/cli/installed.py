"""What to type so that a package is there which comes with an extra of this one.

The name may be on no package index, so the words are made of where this copy was installed from, as the installer has
noted it (PEP 610): a checkout, a wheel, an address, or an index.
"""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from udp_stream.errors import PackageMissing, UdpStreamError

NAME = "udp-stream"


def install_command(extra: str) -> str:
    """A command that works on this machine, or says which folder to run it in."""
    checkout = Path(__file__).parents[2]
    try:
        noted = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        noted = None
    else:
        if noted is None and not (checkout / "pyproject.toml").is_file():  # an index had it, and has it
            return _pip(f"{NAME}[{extra}]")
    return command_of(noted, checkout, extra)


def command_of(noted: str | None, checkout: Path, extra: str) -> str:
    """The same, of what the installer has noted, and the folder above this package.

    >>> command_of('{"url": "https://example.org/udp_stream-0.1.0-py3-none-any.whl"}', Path("/gone"), "kafka")
    "pip install 'udp-stream[kafka] @ https://example.org/udp_stream-0.1.0-py3-none-any.whl'"
    >>> command_of('{"url": "file:///tmp/build-that-is-gone", "dir_info": {}}', Path("/gone"), "kafka")
    "pip install '.[kafka]' in a checkout of udp-stream"
    """
    from_where = json.loads(noted) if noted else {}
    address = str(from_where.get("url", ""))
    if address and not address.startswith("file:"):
        version = from_where.get("vcs_info", {})
        vcs = f"{version['vcs']}+" if "vcs" in version else ""
        commit = f"@{version['commit_id']}" if "commit_id" in version else ""
        return _pip(f"{NAME}[{extra}] @ {vcs}{address}{commit}")
    place = Path(unquote(urlsplit(address).path)) if address else checkout
    if place.is_file():
        return _pip(f"{place}[{extra}]")
    if (place / "pyproject.toml").is_file():
        editable = bool(from_where.get("dir_info", {}).get("editable")) or not address
        return _pip(f"{place}[{extra}]", editable=editable)
    return f"{_pip(f'.[{extra}]')} in a checkout of {NAME}"


def _pip(what: str, *, editable: bool = False) -> str:
    return f"pip install {'--editable ' if editable else ''}{shlex.quote(what)}"


def words_of(error: UdpStreamError) -> str:
    """What is printed of an error: with the command, where a package is missing."""
    if not isinstance(error, PackageMissing):
        return str(error)
    other = f" {error.otherwise}" if error.otherwise else ""
    return f"no {error.what}: {install_command(error.extra)}{other}"
