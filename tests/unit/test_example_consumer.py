"""The examples that read releases, with clients of ours; `test_examples.py` has a broker."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
COME = [*range(5), 4, 3, *range(5, 9), 8]
"""Releases of these numbers come, two of them again while they are remembered, if three are."""


def payload(number):
    return json.dumps({"release_id": f"hat-{number}", "status": "withheld_budget", "mean": None})


@pytest.fixture
def consumer(monkeypatch):
    class Client(list):
        def __init__(self, *_topics, **_settings):
            super().__init__(SimpleNamespace(value=payload(number).encode()) for number in COME)

        def close(self):
            pass

    monkeypatch.setitem(sys.modules, "kafka", SimpleNamespace(KafkaConsumer=Client))
    spec = importlib.util.spec_from_file_location("consumer", EXAMPLES / "python" / "consumer.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("how_many", "printed"), [("0", 9), ("7", 7)])
def test_each_release_is_printed_once_though_only_the_latest_are_remembered(consumer, how_many, printed, capsys):
    """Each id was kept for ever, a hundred bytes a HAT without an end."""
    kept = []
    consumer.KEPT, consumer.said = 3, lambda _release: kept.append(len(sys._getframe(1).f_locals["seen"])) or ()
    consumer.main("nowhere:1", how_many=how_many)
    assert capsys.readouterr().out.split() == [f"hat-{number}" for number in range(printed)]
    assert max(kept) == 3


CLIENT = """
export const logLevel = { ERROR: 1 };
export class Kafka {
  consumer() {
    return { connect() {}, subscribe() {}, disconnect() {},
      async run({ eachMessage }) {
        for (const value of PAYLOADS) await eachMessage({ message: { value } });
        process.exit();
      } };
  }
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not here")
def test_the_same_in_node(tmp_path):
    package = tmp_path / "node_modules" / "kafkajs"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "kafkajs", "type": "module", "main": "index.js"}')
    (package / "index.js").write_text(CLIENT.replace("PAYLOADS", json.dumps([payload(number) for number in COME])))
    text = (EXAMPLES / "node" / "consumer.mjs").read_text("utf-8")
    assert "KEPT = 100_000;" in text
    text = text.replace("KEPT = 100_000;", "KEPT = 3;") + "\n"
    text = text.replace("console.log(", "console.log(seen.size, ")
    (tmp_path / "consumer.mjs").write_text(text)
    done = subprocess.run(["node", "consumer.mjs", "a:1"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1] for line in lines] == [f"hat-{number}" for number in range(9)], done.stderr
    assert max(int(line[0]) for line in lines) == 3
