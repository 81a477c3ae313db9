"""What a Redis answers with, in words: what is wrong, and which key of the configuration is about it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

from redis import exceptions

from udp_stream.errors import DependencyUnavailable

RIGHTS = "the rights that a ledger needs are in docs/deployments.md"


HANDSHAKE_S = 5.0


def require_tls(url: str, context: ssl.SSLContext) -> None:
    """Shake hands once with the server of a rediss:// URL; DependencyUnavailable if that fails.

    A Redis without TLS waits for the end of what it takes for a command, so that a client waits for its answer as long
    as for any other. That nothing answers at all is left to the client, which tries again.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or 6379
    try:
        with socket.create_connection((host, port), HANDSHAKE_S) as plain, suppress(ConnectionError):
            context.wrap_socket(plain, server_hostname=host).close()
    except TimeoutError as error:
        reason = "it does not speak TLS with us (no answer): redis:// is without TLS"
        raise DependencyUnavailable(f"the ledger's Redis at {host}:{port} cannot be used: {reason}") from error
    except ssl.SSLError as error:
        raise DependencyUnavailable(f"the ledger's Redis at {host}:{port} cannot be used: {_of_tls(error)}") from error
    except OSError:
        return


def sentence(trouble: Exception | None, tls: bool = False) -> str:
    """Without anything secret, for behind "cannot be used: "; `tls`: by rediss://.

    >>> sentence(exceptions.AuthenticationError("Authentication required."))
    'it wants a password: ledger.client.password_file'
    """
    found = next((cause for cause in _causes(trouble) if isinstance(cause, ssl.SSLError)), None)
    if found is not None:
        return _of_tls(found)
    text = str(trouble)
    match trouble:
        case exceptions.AskError():
            return "it is one server of a cluster: write redis+cluster:// in ledger.url"
        case exceptions.AuthenticationError() if text.startswith(("Authentication required", "NOAUTH")):
            return "it wants a password: ledger.client.password_file"
        case exceptions.AuthenticationError():
            return "it does not accept the user and password of ledger.client"
        case exceptions.ResponseError() if "no permissions" in text.lower():  # scripts say it in words of their own
            what = text.partition(": ")[2].partition(" command script")[0] or text
            return f"it does not let this user do what a ledger does ({what}): {RIGHTS}"
        case exceptions.ConnectionError() if "closed by server" in text.lower():
            why = (
                "Does it want ledger.client.ssl_certfile?"
                if tls
                else "Does it speak TLS on this port, and want rediss://?"
            )
            return f"it ends the connection. {why}"
    return text or type(trouble).__name__


def _of_tls(error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        reason = f"{error.reason or type(error).__name__}".lower().replace("_", " ")
        if reason.endswith("certificate required"):
            return "it wants a certificate of ours: ledger.client.ssl_certfile"
        return (
            f"it does not speak TLS with us ({reason}): is this its TLS port? Does it want ledger.client.ssl_certfile?"
        )
    # OpenSSL's numbers for a name and for an IP address that the certificate lacks.
    if error.verify_code in (62, 64):
        return "it shows a certificate of another host: ledger.url needs a name that is in it"
    return (
        f"it shows a certificate that is not trusted ({error.verify_message}): ledger.client.ssl_ca_certs names who is"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
