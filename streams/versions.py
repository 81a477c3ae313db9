"""What other versions of udp-stream have written: messages between workers, and commits, belong to a version."""

from __future__ import annotations

from udp_stream.errors import ConfigError


def other_version(what: str) -> ConfigError:
    """What to raise for a message or commit that this version cannot read; nothing of it is quoted.

    >>> str(other_version("the message at bus.parts.v1[0], offset 7,"))[:82]
    'the message at bus.parts.v1[0], offset 7, is none that this version of udp-stream '
    """
    return ConfigError(
        f"{what} is none that this version of udp-stream reads: another version, or another program, has written it. "
        "All workers of a deployment need one version. After an upgrade: let the old version release every slot first, "
        "as docs/operations.md says (Upgrading)"
    )
