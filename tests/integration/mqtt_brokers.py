"""Brokers of MQTT as child processes: Debian's mosquitto, else amqtt, which does not send again
what is not acked."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from lab.process import HOST, Program, RunningService, launch, on_free_ports, temporary_folder

USER, PASSWORD = "reader", "a secret"
SECONDS = 10
MOSQUITTO = shutil.which(
    "mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
)

_CONFIGURATION = """\
user root
listener {port} {host}
allow_anonymous true
persistence true
persistence_location {folder}/
max_queued_messages 0
{more}
"""


@dataclass
class RunningMqtt(RunningService):
    port: int

    def publish(self, topic: str, *messages: bytes, qos: int = 1, retain: bool = False) -> None:
        client = connected(self.port)
        try:
            for message in messages:
                client.publish(topic, message, qos, retain).wait_for_publish(SECONDS)
        finally:
            client.disconnect()
            client.loop_stop()


def connected(port: int) -> Client:
    client, answered = Client(CallbackAPIVersion.VERSION2), Event()
    client.username_pw_set(USER, PASSWORD)
    client.on_connect = lambda *_: answered.set()
    client.connect(HOST, port)
    client.loop_start()
    if not answered.wait(SECONDS):
        client.loop_stop()
        raise OSError("it does not answer")
    return client


@contextmanager
def mqtt(*more: str) -> Iterator[RunningMqtt]:
    """A broker while the block runs, in a temporary folder; `more` are lines of mosquitto's
    configuration."""
    with temporary_folder("mqtt") as place:
        running = on_free_ports(1, lambda ports: _start(place, ports[0], True, more))
        try:
            yield running
        finally:
            running.stop()


def _start(folder: Path, port: int, disposable: bool, more: tuple[str, ...]) -> RunningMqtt:
    if MOSQUITTO is None:
        command = _amqtt(folder, port)
    else:
        text = _CONFIGURATION.format(port=port, host=HOST, folder=folder, more="\n".join(more))
        if os.getuid() != 0:
            text = text.removeprefix("user root\n")
        (folder / "broker.conf").write_text(text)
        command = (MOSQUITTO, "-c", "broker.conf")
    program = Program("MQTT", command, folder, lambda _pid: is_ready(port), disposable)
    return RunningMqtt(program, launch(program), port)


def _amqtt(folder: Path, port: int) -> tuple[str, ...]:
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    listeners = {"default": {"type": "tcp", "bind": f"{HOST}:{port}"}}
    (folder / "broker.json").write_text(
        json.dumps({"listeners": listeners, "plugins": plugins})
    )  # JSON is YAML
    return (sys.executable, "-m", "amqtt.scripts.broker_script", "-c", "broker.json")


def password_file(folder: Path) -> str:
    tool = shutil.which(
        "mosquitto_passwd", path=os.environ.get("PATH", "") + ":/usr/local/bin:/usr/bin"
    )
    assert tool is not None
    subprocess.run(
        [tool, "-b", "-c", str(folder / "users"), USER, PASSWORD], check=True, timeout=SECONDS
    )
    return str(folder / "users")


def is_ready(port: int) -> bool:
    client = connected(port)
    client.disconnect()
    client.loop_stop()
    return True
