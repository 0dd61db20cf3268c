"""Hops through the log: `python -m benchmarks.children.kafka_echo DATA COUNT HOPS`.

The process produces a record of 1 KB without linger and consumes it, one record at a time, as a
single call meets an idle log. Reports `@result` with COUNT times from the first send to the last
receipt of HOPS consecutive hops: their p99 is not HOPS times that of one hop.
"""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.children.line_child import die_with_parent, report_line
from cli.admin.operator_connections import kafka_settings
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import Topic
from topics.records.records import CallerHeartbeat
from topics.tail_readers.topic_tail_reader import TopicTailReader

TOPIC = Topic(
    name="echo",
    records=(CallerHeartbeat,),
    key="none",
    partition_count=1,
    ordering="none",
    written_by=("benchmark",),
    read_by=("benchmark",),
    retention_days=1,
)
BODY = bytes(1_000)
WARM_UP = 50
_RECEIVE_S_MAX = 5.0
_START_S_MAX = 30.0


def main(data: str, count: str, hops: str) -> None:
    """Measure `count` times `hops` hops on the broker of the stack in `data`."""
    settings = kafka_settings(Path(data))
    TopicAdmin(settings).create([TOPIC])
    tail = TopicTailReader(settings, TOPIC, client_id=f"echo-{os.getpid()}")
    tail.seek_to_end(_START_S_MAX)
    producer = RecordProducer(settings, client_id="echo", linger_ms=0)
    times_s = [
        sum(_hop(producer, tail) for _ in range(int(hops))) for _ in range(WARM_UP + int(count))
    ]
    report_line("result", json.dumps(times_s[WARM_UP:]))
    producer.close()
    tail.close()


def _hop(producer: RecordProducer, tail: TopicTailReader) -> float:
    began_s = time.perf_counter()
    producer.send(TOPIC.name, BODY, partition=0)
    while not any(record.value for record in tail.poll(_RECEIVE_S_MAX)):
        if time.perf_counter() - began_s > _RECEIVE_S_MAX:
            raise TimeoutError
    return time.perf_counter() - began_s


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
