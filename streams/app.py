"""The Faust app: a shell for agents, rebalancing and the consumer's thread, with none of its state or acks.

What is switched off here loses or delays pings when trusted: acks (they commit past what is held), waiting for streams
to empty (it blocks rebalances), tables, leaders and topic declarations. Offsets are ours (`offsets.py`).
"""

from __future__ import annotations

import faust

from streams.connections import faust_credentials, faust_options
from streams.topics import Topic
from streams.transport import BATCHES_MAX, BatchSchema, BatchTransport
from udp_stream.adapters.settings import Settings

POLL_RECORDS_MAX = 5000


def build_app(settings: Settings, instance: str | None, client: str, folder: str, session_s: float) -> faust.App:
    """An app without agents. `instance` names this worker for ever: started again under it, it has its partitions back
    at once. `client` is its client id; the group misses it after `session_s`. `folder` is where Faust makes
    its folders; nothing is kept there."""
    kafka = settings.kafka
    app = faust.App(
        kafka.group,
        broker=[f"kafka://{address.strip()}" for address in kafka.bootstrap.split(",")],
        broker_credentials=faust_credentials(kafka),
        store="memory://",
        datadir=folder,
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        stream_wait_empty=False,
        stream_buffer_maxsize=BATCHES_MAX,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance,
        broker_client_id=client,
        broker_session_timeout=session_s,
        broker_rebalance_timeout=max(session_s, 10.0),
        broker_heartbeat_interval=session_s / 4,
        broker_max_poll_records=POLL_RECORDS_MAX,
        # Faust never commits here, and would warn that its commits do not advance.
        broker_commit_livelock_soft_timeout=1e9,
        worker_redirect_stdouts=False,
        **faust_options(kafka),
    )
    app.transport = BatchTransport(app.conf.broker_consumer, app)
    return app


def batches(app: faust.App, topic: Topic) -> faust.TopicT:
    """The topic as a source of batches that Faust neither acks nor commits."""
    return app.topic(topic.name, schema=BatchSchema(), acks=False)
