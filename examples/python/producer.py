"""Pings into Kafka from your own program: one a line on standard input, in the form of docs/ping.schema.json.

    my-feed | python producer.py HOST:PORT [TOPIC]

Needs kafka-python. Three rules (docs/operations.md, "A feed of your own"):

1. A plate stays on one partition for ever. So the partition comes from the plate alone, and one program, this one or
   `udp-stream feed`, feeds a deployment: they choose partitions in different ways.
2. Records have no key.
3. A record is one ping, or an array that is cut by the number of pings.
"""

import json
import sys
from hashlib import sha256

from kafka import KafkaProducer


def partition_of(plate: str, partitions: int) -> int:
    """The same in ../node/producer.mjs."""
    return int.from_bytes(sha256(plate.strip().encode()).digest()[:4], "big") % partitions


def main(bootstrap: str, topic: str = "bus.pings.v1") -> None:
    """Send until the end of standard input; end when the broker has all of it, or has not taken something."""
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=20
    )
    partitions = len(producer.partitions_for(topic))
    sent, not_taken = 0, []
    for line in sys.stdin.buffer:
        plate = json.loads(line)["license_plate"]
        answer = producer.send(topic, line.strip(), partition=partition_of(plate, partitions))
        answer.add_errback(not_taken.append)  # answers are not kept: a live feed has no end
        sent += 1
        if not_taken:
            break
    producer.flush()
    if not_taken:
        raise not_taken[0]
    producer.close()
    print(f"{sent} pings sent", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
