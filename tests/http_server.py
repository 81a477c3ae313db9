"""An HTTP server that does wrong what servers do wrong: each request is answered by the next step
of a script."""

import gzip
import socket
import ssl
import struct
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GTFS = "application/x-protobuf"


def ok(body, kind="application/json", **headers):
    def answer(request):
        request.respond(200, body, {"Content-Type": kind, **dashed(headers)})

    return answer


def status(code, **headers):
    return lambda request: request.respond(code, b"no", dashed(headers))


def dashed(headers):
    return {name.replace("_", "-"): value for name, value in headers.items()}


def gzipped(body, **headers):
    return ok(gzip.compress(body), Content_Encoding="gzip", **headers)


def stall(request):
    request.server.stalled.wait(30)


def drip(request):
    request.connection.sendall(b"HTTP/1.1 200 OK\r\nX-Words: ")
    for _ in range(3000):
        if request.server.stalled.wait(0.02):
            return
        request.connection.sendall(b"H")


def cut(body, at, kind="application/json"):
    def answer(request):
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        request.connection.sendall(head.encode() + body[:at])

    return answer


def reset(request):
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()


def cut_chunked(body):
    """Chunks that end without the last one."""

    def answer(request):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        request.connection.sendall(head + b"%x\r\n%s\r\n" % (len(body), body))

    return answer


def endless(request):
    """Bytes without end, compressed a thousandfold where `bomb` sends it."""
    request.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    with suppress(OSError):
        while True:
            request.connection.sendall(b"[" * 65536)


def junk(request):
    request.connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")


def seen(answers):
    state = {"at": 0}

    def answer(request):
        body = answers[min(state["at"], len(answers) - 1)]
        tag = f'"{hash(body)}"'
        if request.headers.get("If-None-Match") == tag:
            state["at"] += 1
            request.respond(304, b"", {"ETag": tag})
        else:
            request.respond(200, body, {"Content-Type": "application/json", "ETag": tag})

    return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        with server.lock:
            server.requests.append((time.monotonic(), self.path, dict(self.headers.items())))
            step = server.script.pop(0) if len(server.script) > 1 else server.script[0]
        self.close_connection = True
        with suppress(OSError):
            step(self)

    def respond(self, code, body, headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if code != 304:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script, tls=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.requests, self.lock, self.stalled = (
            list(script),
            [],
            threading.Lock(),
            threading.Event(),
        )
        self.scheme = "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.socket, self.scheme = context.wrap_socket(self.socket, server_side=True), "https"

    def handle_error(self, request, client_address):
        """A client that hangs up is what these tests are about."""

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server_port}"


@contextmanager
def serving(*script, tls=None):
    """A server on a free port; its last step is repeated."""
    server = Server(script, tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stalled.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
