"""Goal: a record whose numbers would crash batchers is unreadable, and ends none."""

from typing import Any

import pytest

from batcher.inbound.unreadable_records import read_chunk
from core.errors import RecordUnreadableError
from tests.unit.batcher.builders import items_of, job_ref
from topics.records.codec import chunk_headers, encode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk, JobRef


def record_of(job: JobRef) -> ReceivedRecord:
    chunk = Chunk(job, items_of(range(2)))
    return ReceivedRecord("t", 0, 0, None, chunk_headers(chunk, "bulk"), encode(chunk), 0)


@pytest.mark.parametrize(
    "claim",
    [
        {"weight": 0},
        {"weight": -5},
        {"weight": 2**40},
        {"reserved": float("nan")},
        {"reserved": -0.1},
        {"reserved": 1.5},
        {"tenant_class": -1},
        {"tenant_class": 3},
    ],
    ids=str,
)
def test_a_chunk_with_a_claim_out_of_range_is_unreadable(claim: dict[str, Any]) -> None:
    with pytest.raises(RecordUnreadableError, match="out of range"):
        read_chunk(record_of(job_ref(**claim)))


def test_a_chunk_with_the_largest_claim_is_readable() -> None:
    job = job_ref(weight=1_000, reserved=1.0, tenant_class=2)
    assert read_chunk(record_of(job)).job == job
