"""Ends of certificates: files of the configuration, and what a server shows.

The standard library tells the end of a certificate that it has verified, and of an authority's, but
not of a file that we show ourselves. So the end is read from the certificate itself (RFC 5280,
4.1).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from udp_stream.settings import Settings

_END = "-----END CERTIFICATE-----"


def end_of(der: bytes) -> float:
    """When a certificate ends, Unix. ValueError or IndexError if it is none."""
    _, at, _ = _element(der, _element(der, 0)[1])
    if der[at] == 0xA0:  # its version
        at = _element(der, at)[2]
    for _ in ("number", "algorithm", "issuer"):
        at = _element(der, at)[2]
    _, begins, _ = _element(der, at)
    _, at, end = _element(der, _element(der, begins)[2])
    text = der[at:end].decode("ascii")
    century = ("19" if text >= "5" else "20") * (len(text) == 13)
    return datetime.strptime(century + text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Kind of the element at `at`, and where its contents begin and end."""
    size = der[at + 1]
    begins = at + 2
    if size & 0x80:
        digits = size & 0x7F
        size = int.from_bytes(der[begins : begins + digits], "big")
        begins = begins + digits
    return der[at], begins, begins + size


def ends_of(file: str) -> list[float]:
    """When the certificates of a file end, in its order; none of a file that cannot be read, as who
    uses it says."""
    ends = []
    with suppress(OSError, ValueError, IndexError):
        for text in Path(file).read_text(encoding="ascii", errors="replace").split(_END)[:-1]:
            pem = text[text.index("-----BEGIN CERTIFICATE-----") :] + _END
            ends.append(end_of(ssl.PEM_cert_to_DER_cert(pem)))
    return ends


def first_end(settings: Settings) -> float | None:
    """When the first of the certificates ends that the settings name: of authorities in the same
    file the last counts, as a new authority is put beside the old."""
    kafka = settings.kafka.client
    ledger = settings.ledger.client
    authorities = settings.live.ca_file, kafka.get("ssl_cafile"), ledger.get("ssl_ca_certs")
    ours = kafka.get("ssl_certfile"), ledger.get("ssl_certfile")
    found = [max(ends) for ends in _of_files(authorities)] + [ends[0] for ends in _of_files(ours)]
    return min(found, default=None)


def _of_files(names: Iterable[object]) -> list[list[float]]:
    return [ends for name in names if name for ends in [ends_of(str(name))] if ends]


def note_shown(context: ssl.SSLContext, note: Callable[[float], None]) -> None:
    """Pass on the end of each certificate that a server shows in this context, once it is
    verified."""

    class PeerCertificateObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            with suppress(ValueError, IndexError):
                note(end_of(self.getpeercert(binary_form=True) or b""))

    context.sslobject_class = PeerCertificateObject
