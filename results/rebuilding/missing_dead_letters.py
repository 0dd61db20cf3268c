"""Dead letters and failed attempts of a job: those that the log has and the live tables lack.

Rows that are there stay as they are, for they may say which job took them up again. Only a deletion
takes any away by rule, with its job, which is locked here or gone.
"""

from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa

from results.rebuilding.shadow_tables import SCHEMA, statement


class MissingCounts(NamedTuple):
    """Rows that only the shadow has."""

    letters: int
    attempts: int


_SPAN: Final = "made.job_id = :job AND made.item_index >= :first AND made.item_index < :last"
_LETTERS: Final = f"""
SELECT count(*) FROM {SCHEMA}.dead_items made WHERE {_SPAN} AND NOT EXISTS (
    SELECT FROM dead_items live
    WHERE live.job_id = made.job_id AND live.item_index = made.item_index
)
"""  # noqa: S608  nothing of it comes from outside
_ATTEMPTS: Final = f"""
SELECT count(*) FROM {SCHEMA}.item_attempts made
JOIN {SCHEMA}.items ended ON ended.job_day = :day AND ended.job_id = made.job_id
    AND ended.item_index = made.item_index
WHERE {_SPAN} AND (made.attempt < ended.attempt OR ended.attempt = 0) AND NOT EXISTS (
    SELECT FROM item_attempts live WHERE live.job_id = made.job_id
        AND live.item_index = made.item_index AND live.attempt = made.attempt
)
"""  # noqa: S608
"""Only of those that led on, or waited for the next when a close came: whether one beside the end
of its item has a row depends on how the log was cut into transactions (ADR 20)."""

_ITS_ROW: Final = """
JOIN items ended ON ended.job_day = :day AND ended.job_id = made.job_id
    AND ended.item_index = made.item_index
WHERE made.job_id = :job ON CONFLICT DO NOTHING
"""
_ADD_LETTERS: Final = f"""
INSERT INTO dead_items (job_id, item_index, tenant_id, job_day, attempt, line_offset, failed_at)
SELECT made.job_id, made.item_index, made.tenant_id, made.job_day, made.attempt, made.line_offset,
    ended.finished_at
FROM {SCHEMA}.dead_items made {_ITS_ROW}
"""  # noqa: S608
_ADD_ATTEMPTS: Final = f"""
INSERT INTO item_attempts (job_id, item_index, attempt, status_code, code, failed_at)
SELECT made.job_id, made.item_index, made.attempt, made.status_code, made.code,
    least(made.failed_at, ended.finished_at)
FROM {SCHEMA}.item_attempts made {_ITS_ROW}
"""  # noqa: S608
"""When it failed is not on the log: no later than its item ended."""


def count_missing(connection: sa.Connection, span: dict[str, object]) -> MissingCounts:
    """Count what is missing of a job's items; `span` binds `day`, `job`, `first` and `last`."""
    counts: list[Any] = [connection.scalar(statement(text), span) for text in (_LETTERS, _ATTEMPTS)]
    return MissingCounts._make(counts)


def add_missing(connection: sa.Connection, job: tuple[UUID, int]) -> None:
    """Add what is missing of a job, given by its id and day; its rows of `items` are right now."""
    job_id, day = job
    for text in (_ADD_LETTERS, _ADD_ATTEMPTS):
        connection.execute(statement(text), {"job": job_id, "day": day})
