"""The example that sends pings from Python, with a client of ours; `test_examples.py` has a broker."""

import importlib.util
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import pytest

FILE = Path(__file__).parents[2] / "examples" / "python" / "producer.py"
LINES = 1000


class Answer:
    """Of a client that answers at once."""

    def __init__(self, error):
        self.error = error

    def add_errback(self, call):
        if self.error is not None:
            call(self.error)

    def get(self, **_):
        if self.error is not None:
            raise self.error


class Client:
    """Keeps no answer, and counts those that somebody keeps."""

    refuses = None

    def __init__(self, **_settings):
        self.alive, self.most, self.sent = WeakSet(), 0, 0
        Client.last = self

    def partitions_for(self, _topic):
        return {0, 1}

    def send(self, _topic, _value, **_):
        answer = Answer(OSError("not taken") if self.sent == self.refuses else None)
        self.alive.add(answer)
        self.most, self.sent = max(self.most, len(self.alive)), self.sent + 1
        return answer

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture
def producer(monkeypatch):
    monkeypatch.setitem(sys.modules, "kafka", SimpleNamespace(KafkaProducer=Client))
    lines = b"".join(json.dumps({"license_plate": f"P{i % 7}"}).encode() + b"\n" for i in range(LINES))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    spec = importlib.util.spec_from_file_location("example_producer", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_feed_without_an_end_fills_no_memory(producer, capsys):
    producer.main("broker:9092")
    assert Client.last.sent == LINES and Client.last.most < 10
    assert capsys.readouterr().err == f"{LINES} pings sent\n"


def test_a_ping_that_the_broker_does_not_take_ends_the_feed_there(producer, monkeypatch):
    monkeypatch.setattr(Client, "refuses", 20)
    with pytest.raises(OSError, match="not taken"):
        producer.main("broker:9092")
    assert Client.last.sent == 21
