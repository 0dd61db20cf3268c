"""Goal: dead letters fit the log, however often their items were tried."""

from uuid import UUID

import pytest

from core.limits import RECORD_BYTES_MAX
from results.writer.failure_handling import split_for_records
from topics.records.codec import encode
from topics.records.dead_items import DeadItem, DeadItems, FailedItemAttempt

JOB = UUID(int=1)


def letters(count: int, *, id_bytes: int, attempt_count: int) -> list[DeadItem]:
    tried = [FailedItemAttempt(n, 500, "c" * 64, 1.5e9) for n in range(attempt_count)]
    return [DeadItem(index, "i" * id_bytes, tried) for index in range(count)]


@pytest.mark.parametrize(
    ("count", "id_bytes", "attempt_count"),
    [(600, 10, 1), (600, 2048, 30), (600, 2048, 100), (0, 10, 1)],
)
def test_every_record_fits_and_no_letter_is_lost(
    count: int, id_bytes: int, attempt_count: int
) -> None:
    all_ = letters(count, id_bytes=id_bytes, attempt_count=attempt_count)

    parts = list(split_for_records(all_))

    assert [letter for part in parts for letter in part] == all_
    assert all(0 < len(part) <= 250 for part in parts)
    records = [encode(DeadItems(JOB, 0, JOB, part)) for part in parts]
    assert max(map(len, records), default=0) < RECORD_BYTES_MAX / 2
