"""The proxy of the chaos tests does to connections what it says."""

import socket
import socketserver
import threading

import pytest

from tests.chaos.proxy import HOST, Proxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1000):
            self.server.heard.append(data)
            self.request.sendall(b"<" + data + b">")


@pytest.fixture
def server():
    with socketserver.ThreadingTCPServer((HOST, 0), Echo) as server:
        server.heard, server.daemon_threads = [], True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture
def proxy():
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def link(proxy, server):
    return proxy.link(server.server_address[1])


@pytest.fixture
def client(link):
    with socket.create_connection((HOST, link.port), timeout=10) as client:
        assert ask(client, b"hello") == b"<hello>"
        yield client


def ask(client, words):
    client.sendall(words)
    return client.recv(1000)


def is_cut(client):
    try:
        return client.recv(1000) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("lost", [False, True])
def test_a_trap_holds_a_request_or_its_answer(proxy, link, client, server, answered, lost):
    """Held before the server has heard of it, or after; then it goes on, or is lost with its connection."""
    trap = proxy.set_trap([link], rb"ch.rge", answered)
    assert ask(client, b"look") == b"<look>" and not trap.caught.is_set()
    client.sendall(b"charge!")
    assert trap.caught.wait(10) and trap.link is link
    if answered:
        assert server.heard[-1] == b"charge!"
    else:
        assert server.heard[-1] == b"look"
    proxy.call(trap.drop if lost else trap.open)
    assert is_cut(client) if lost else client.recv(1000) == b"<charge!>"
    assert (b"charge!" in server.heard) == (answered or not lost)


def test_an_answer_that_asks_to_try_again_is_let_through(proxy, link, client):
    trap = proxy.set_trap([link], rb"charge", answered=True)
    assert ask(client, b"NOSCRIPT charge") == b"<NOSCRIPT charge>"
    client.sendall(b"charge")
    assert trap.caught.wait(10)
