"""A Redis that is away is waited for, and said; what no waiting mends is not."""

import pytest
from redis import exceptions

from udp_stream.base.errors import DependencyUnavailable
from udp_stream.ledgers import redis_connection
from udp_stream.ledgers.patience import WAIT_S, Patience
from udp_stream.ledgers.redis_connection import connection_to


class Server:
    """Away until `back_s`. Each try takes a second or longer, and each long pause a second."""

    def __init__(self, back_s, trouble, try_s):
        self.back_s, self.trouble, self.try_s, self.now_s = back_s, trouble, try_s, 0.0

    def send(self, _url, commands):
        self.now_s += self.try_s
        return ([b"PONG"] * len(commands), None) if self.now_s > self.back_s else ([], self.trouble)

    def wait(self, seconds):
        self.now_s += 1.0 if seconds >= 1 else 0.0
        return False


@pytest.fixture
def ask(monkeypatch):
    """Ask a server for a PONG: the answer, the server, and the patience."""
    monkeypatch.setattr(redis_connection.time, "sleep", lambda _: None)

    def asked(back_s, trouble=None, ended=False, try_s=1.0, is_open=True):
        server = Server(back_s, trouble or exceptions.ConnectionError("refused"), try_s)
        connection = connection_to("redis://127.0.0.1:1/0", "{udp}", {})
        connection.connections = server
        connection.patience = patience = Patience(clock=lambda: server.now_s)
        patience.is_open = is_open
        if ended:
            patience.close()
        else:
            monkeypatch.setattr(patience._ended, "wait", server.wait)
        return connection.exchange([("PING",)]), server, patience

    return asked


def test_ten_minutes_without_redis_are_waited_for_and_said_twice(ask, capsys):
    answer, server, patience = ask(back_s=600.0)
    assert answer == [b"PONG"] and 600 < server.now_s < 605
    away, back = capsys.readouterr().err.splitlines()
    assert away.startswith("udp-stream: warning: the ledger does not answer")
    assert back.startswith("udp-stream: the ledger answers again, after 60")
    # Each try is a sign of life for the watchdog: none takes as long as its patience.
    assert patience.tries > 100 and patience.lasted_s == 0.0


def test_a_server_that_starts_again_is_not_worth_a_line(ask, capsys):
    assert ask(back_s=1.0)[0] == [b"PONG"]
    assert capsys.readouterr().err == ""


def test_a_server_that_hangs_is_said_with_the_first_question_that_it_leaves_open(ask, capsys):
    """A server that is paused takes questions and answers none of them: each takes the client's
    half a minute."""
    assert ask(back_s=50.0, try_s=30.0)[0] == [b"PONG"]
    away, back = capsys.readouterr().err.splitlines()
    assert "does not answer" in away and back.endswith("after 60 s")


def test_as_a_ledger_is_opened_a_full_server_alone_is_waited_for(ask, capsys):
    with pytest.raises(DependencyUnavailable, match="refused"):
        ask(back_s=60.0, is_open=False)
    assert capsys.readouterr().err == ""
    full = exceptions.OutOfMemoryError("OOM command not allowed")
    assert ask(back_s=600.0, trouble=full, is_open=False)[0] == [b"PONG"]
    away, back = capsys.readouterr().err.splitlines()
    assert "maxmemory" in away and "answers again" in back


def test_no_worker_waits_for_ever(ask):
    with pytest.raises(DependencyUnavailable, match="refused"):
        ask(back_s=2 * WAIT_S)
    assert WAIT_S < 1000.0  # then its consumer would leave the group


def test_a_worker_that_is_to_stop_waits_no_longer(ask):
    with pytest.raises(DependencyUnavailable):
        ask(back_s=60.0, ended=True)


def test_a_wrong_password_is_not_waited_for(ask, capsys):
    with pytest.raises(DependencyUnavailable, match="user and password"):
        ask(back_s=600.0, trouble=exceptions.AuthenticationError("WRONGPASS"))
    assert capsys.readouterr().err == ""
