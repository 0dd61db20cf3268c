"""Counts and restores dead letters and failed attempts that the log has and the live tables lack.

Existing rows are not changed, since they may name the job that retried them. Only the deletion of a
job removes such rows, and the job is locked here or deleted.
"""

from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from results.rebuilding.shadow_tables import SCHEMA, statement


class MissingCounts(NamedTuple):
    """Rows that only the shadow tables have."""

    letters: int
    attempts: int


_SPAN: Final = "made.job_id = :job AND made.item_index >= :first AND made.item_index < :last"
_LETTERS: Final = f"""
SELECT count(*) FROM {SCHEMA}.dead_items made WHERE {_SPAN} AND NOT EXISTS (
    SELECT FROM dead_items live
    WHERE live.job_id = made.job_id AND live.item_index = made.item_index
)
"""  # noqa: S608  no outside input
_ATTEMPTS: Final = f"""
SELECT count(*) FROM {SCHEMA}.item_attempts made
JOIN {SCHEMA}.items ended ON ended.job_day = :day AND ended.job_id = made.job_id
    AND ended.item_index = made.item_index
WHERE {_SPAN} AND (made.attempt < ended.attempt OR ended.attempt = 0) AND NOT EXISTS (
    SELECT FROM item_attempts live WHERE live.job_id = made.job_id
        AND live.item_index = made.item_index AND live.attempt = made.attempt
)
"""  # noqa: S608
"""Only attempts that led to another one, or waited for it when a close came: whether an attempt in
the group of the final outcome has a row depends on the groups (ADR 20)."""

_JOIN_ROW: Final = """
JOIN items ended ON ended.job_day = :day AND ended.job_id = made.job_id
    AND ended.item_index = made.item_index
WHERE made.job_id = :job ON CONFLICT DO NOTHING
"""
_ADD_LETTERS: Final = f"""
INSERT INTO dead_items (job_id, item_index, tenant_id, job_day, attempt, line_offset, failed_at)
SELECT made.job_id, made.item_index, made.tenant_id, made.job_day, made.attempt, made.line_offset,
    ended.finished_at
FROM {SCHEMA}.dead_items made {_JOIN_ROW}
"""  # noqa: S608
_ADD_ATTEMPTS: Final = f"""
INSERT INTO item_attempts (job_id, item_index, attempt, status_code, code, failed_at)
SELECT made.job_id, made.item_index, made.attempt, made.status_code, made.code,
    least(made.failed_at, ended.finished_at)
FROM {SCHEMA}.item_attempts made {_JOIN_ROW}
"""  # noqa: S608
"""The log lacks the time of failure; it was not later than the end of the item."""


def count_missing(connection: sa.Connection, span: dict[str, object]) -> MissingCounts:
    """Count the rows missing in an index range; `span` binds `day`, `job`, `first` and `last`."""
    counts: list[Any] = [connection.scalar(statement(text), span) for text in (_LETTERS, _ATTEMPTS)]
    return MissingCounts._make(counts)


def add_missing(connection: sa.Connection, job: tuple[UUID, int]) -> None:
    """Insert the missing rows of a job (id and day) after its item rows were corrected."""
    job_id, day = job
    for text in (_ADD_LETTERS, _ADD_ATTEMPTS):
        connection.execute(statement(text), {"job": job_id, "day": day})
