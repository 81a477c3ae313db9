"""Releases out of Kafka into your own program: a line for each HAT, as docs/release.schema.json describes it.

    python consumer.py HOST:PORT [TOPIC [HOW_MANY]]

Needs kafka-python. Read committed records only: then each release comes once. A program that starts again may see one
twice, with the same bytes: `release_id` says which it is. The latest ids are kept, and not all of them for ever.
"""

import json
import sys

from kafka import KafkaConsumer

KEPT = 100_000  # ids; what comes twice comes soon


def main(bootstrap: str, topic: str = "bus.speed.release.v1", how_many: str = "0") -> None:
    """From the beginning on, until stopped, or until so many have come."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest",
        enable_auto_commit=False,
    )  # fmt: skip
    seen, printed = {}, 0  # a dictionary has its keys in their order
    for record in consumer:
        release = json.loads(record.value)
        if release["release_id"] in seen:
            continue
        seen[release["release_id"]] = None
        if len(seen) > KEPT:
            del seen[next(iter(seen))]
        print(release["release_id"], *said(release), flush=True)
        printed += 1
        if printed == int(how_many):
            break
    consumer.close()


def said(release: dict) -> tuple:
    """The private mean with its 95 % interval in km/h, or why there is none."""
    if release["mean"] is None:
        return (release["status"],)
    return (release["status"], release["mean"]["value_kmh"], *release["mean"]["interval95_kmh"])


if __name__ == "__main__":
    main(*sys.argv[1:])
