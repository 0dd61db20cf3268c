"""Outcomes of one job on its partition of `results`, as replicas publish them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from benchmarks.data.input_files import CHAT, custom_id
from benchmarks.data.result_records import RECORD_ITEMS, bodies
from core.outcomes import Outcome
from topics.clients.producer import RecordProducer
from topics.records.catalogue import RESULTS
from topics.records.codec import encode, kind_headers
from topics.records.partitioner import job_partition
from topics.records.records import ItemOutcome, JobRef, Outcomes
from topics.settings import KafkaSettings

_FLUSH_S: Final = 600.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def job_of(job_id: UUID, tenant_id: UUID) -> JobRef:
    """Return the reference of a job that was created today."""
    return JobRef(
        job_id=job_id,
        day=(datetime.now(UTC) - _EPOCH).days,
        tenant_id=tenant_id,
        model="simulated",
        model_version="1",
        pool="simulated",
        endpoint=CHAT,
        input_key="files/benchmark",
        deadline_s=2e9,
    )


def publish_outcomes(servers: str, job: JobRef, items: int) -> None:
    """Write a success of 1 KB for each item; return when the broker has them all."""
    settings = KafkaSettings(bootstrap_servers=servers)
    producer = RecordProducer(settings, client_id="benchmark", full_queue_wait_s=_FLUSH_S)
    partition = job_partition(job.job_id, RESULTS.partition_count)
    for outcomes in _records(job, items):
        producer.send(
            RESULTS.name,
            encode(outcomes),
            partition=partition,
            key=job.job_id.bytes,
            headers=kind_headers(Outcomes),
        )
    producer.flush(_FLUSH_S)
    producer.close()


def _records(job: JobRef, items: int) -> Iterator[Outcomes]:
    body = bodies()
    for first in range(0, items, RECORD_ITEMS):
        yield Outcomes(
            job,
            [
                ItemOutcome(
                    index=index,
                    custom_id=custom_id(index),
                    outcome=Outcome.SUCCEEDED,
                    status_code=200,
                    body=body[index % len(body)],
                    input_tokens=230,
                    output_tokens=160,
                )
                for index in range(first, min(first + RECORD_ITEMS, items))
            ],
            engine="e" * 64,
        )
