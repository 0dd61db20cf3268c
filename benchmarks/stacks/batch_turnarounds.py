"""How long batches took from the batcher to the last answer of their items, read from the log."""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from topics.records.catalogue import RESULTS, batches_topic
from topics.records.codec import decode_value, kind_of
from topics.records.kinds import KINDS
from topics.records.records import Batch, Outcomes

_POLL_S, _READ_S_MAX = 1.0, 60.0


class LoggedRecord(NamedTuple):
    """A record and the time at which its producer sent it, in seconds since the epoch."""

    sent_s: float
    kind: str
    value: bytes


class Turnaround(NamedTuple):
    """A batch whose items all have an outcome."""

    sent_s: float
    seconds: float
    items: int


def batch_turnarounds(servers: str, pool: str, job_ids: Iterable[UUID]) -> list[Turnaround]:
    """Return the turnarounds of the bulk batches of these jobs, in the order of their sending."""
    batches = [
        (record.sent_s, decode_value(Batch, record.value))
        for record in _read_topic(servers, batches_topic(pool, "bulk").name)
        if record.kind == KINDS[Batch]
    ]
    ended_s: dict[tuple[UUID, int], float] = {}
    for record in _read_topic(servers, RESULTS.name):
        if record.kind == KINDS[Outcomes]:
            outcomes = decode_value(Outcomes, record.value)
            for item in outcomes.items:
                ended_s.setdefault((outcomes.job.job_id, item.index), record.sent_s)
    return turnarounds(batches, ended_s, {*job_ids})


def turnarounds(
    batches: Iterable[tuple[float, Batch]],
    ended_s: dict[tuple[UUID, int], float],
    job_ids: set[UUID],
) -> list[Turnaround]:
    """Return the time from each batch to the last first outcome of its items."""
    found = []
    for sent_s, batch in batches:
        keys = [(part.job.job_id, item.index) for part in batch.parts for item in part.items]
        if all(key[0] in job_ids and key in ended_s for key in keys):
            last_s = max(ended_s[key] for key in keys)
            found.append(Turnaround(sent_s, last_s - sent_s, len(keys)))
    return sorted(found)


def _read_topic(servers: str, topic: str) -> Iterator[LoggedRecord]:
    """Yield the records that the topic has now."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "benchmark", "enable.auto.commit": False}
    )
    try:
        metadata = consumer.list_topics(topic, timeout=_READ_S_MAX)
        left = {}
        for number in metadata.topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number))
            if high > low:
                left[number] = high
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        give_up_at_s = time.monotonic() + _READ_S_MAX
        while left and time.monotonic() < give_up_at_s:
            message = consumer.poll(_POLL_S)
            if message is None or message.error():
                continue
            yield LoggedRecord(
                message.timestamp()[1] / 1000, kind_of(message.headers()), message.value() or b""
            )
            if message.offset() + 1 >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
    finally:
        consumer.close()
