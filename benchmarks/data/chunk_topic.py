"""A topic full of chunk records, and the tally of its reader."""

import json
import time

from benchmarks.children.line_child import report_line
from benchmarks.data.input_files import CHAT, chat_lines, custom_id
from core.ids import new_uuid
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import REQUESTS_BULK
from topics.records.codec import chunk_headers, decode_value, encode
from topics.records.records import Chunk, Item, JobRef
from topics.settings import KafkaSettings

JOB_CLASS = "bulk"
_FLUSH_S = 120.0
_TOKENS = 390


def fill_topic(servers: str, prefix: str, *, items: int, record_items: int) -> None:
    """Create the requests topic under `prefix` and write `items` in records of `record_items`."""
    settings = KafkaSettings(bootstrap_servers=servers, topic_prefix=prefix)
    TopicAdmin(settings).create([REQUESTS_BULK])
    producer = RecordProducer(settings, client_id="benchmark")
    job = JobRef(
        job_id=new_uuid(),
        day=0,
        tenant_id=new_uuid(),
        model="simulated",
        model_version="1",
        pool="simulated",
        endpoint=CHAT,
        input_key="files/benchmark",
        deadline_s=0.0,
    )
    buffered: list[Item] = []
    for index, line in enumerate(chat_lines(items, model="simulated")):
        buffered.append(Item(index, custom_id(index), line, _TOKENS))
        if len(buffered) == record_items:
            chunk = Chunk(job, buffered)
            producer.send(
                REQUESTS_BULK.name,
                encode(chunk),
                partition=index // record_items % REQUESTS_BULK.partition_count,
                headers=chunk_headers(chunk, JOB_CLASS),
            )
            buffered = []
    producer.flush(_FLUSH_S)
    producer.close()


class Tally:
    """Decodes records, counts their items, and reports the result after the last."""

    def __init__(self, items: int) -> None:
        """Expect `items` in all."""
        self._expected = items
        self._seen = bytearray(items)
        self._count = self._first_items = 0
        self._started_s = self._started_cpu_s = 0.0

    def add_record(self, value: bytes | None) -> bool:
        """Count a record; True once all items were seen. The clock starts after the first."""
        chunk = decode_value(Chunk, value)
        for item in chunk.items:
            self._seen[item.index] = 1
        self._count += len(chunk.items)
        if not self._first_items:
            self._first_items = len(chunk.items)
            self._started_s, self._started_cpu_s = time.perf_counter(), time.process_time()
        return self._count >= self._expected

    def report(self) -> None:
        """Report the result to the benchmark."""
        result = {
            "seconds": time.perf_counter() - self._started_s,
            "cpu_s": time.process_time() - self._started_cpu_s,
            "items": self._count,
            "distinct": sum(self._seen),
            "first_items": self._first_items,
        }
        report_line("result", json.dumps(result))
