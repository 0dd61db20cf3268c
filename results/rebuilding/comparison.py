"""Compares live tables with shadow tables: digests first, and rows where the digests differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from results.audit.recorded_totals import OUTCOMES, TOKENS
from results.rebuilding.shadow_tables import SCHEMA, statement
from storage.postgres.items import item_columns

WINDOW_ITEMS: Final = 10_000

COLUMNS: Final = (
    *("outcome", "status_code", "attempt", *TOKENS),
    *("custom_id", "error_code", "error_message", "body", "body_key", "copied_from"),
)
"""The columns of an item row that derive from the log; `finished_at` does not."""

ROW_COLUMNS: Final = (*COLUMNS, "provenance")
"""Those, and one that rows of older releases lack; its numbers are those of the job."""

COUNTERS: Final = (*OUTCOMES, *TOKENS, "copied")
USAGE: Final = ("item_count", *TOKENS, "copied_count")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences between the live rows of one job and those rebuilt from the log."""

    live_digest: str
    shadow_digest: str
    missing: int  # rows that only the shadow has
    extra: int  # rows that only the live table has
    different: int
    counters_agree: bool
    usage_agrees: bool
    is_order_complete: bool  # the live order has every item once, without a gap
    shadow_ended: int
    letters_missing: int = 0  # dead letters that only the shadow has
    attempts_missing: int = 0  # failed attempts that led to another, and only the shadow has
    above_limit: int = 0  # executions that the present limit of attempts would not allow
    below_limit: int = 0  # final failures that the present limit would retry
    provenance_agrees: bool = True  # of the rows that have one; older releases wrote none

    @property
    def is_same(self) -> bool:
        """Whether there is nothing to swap."""
        rows_agree = self.live_digest == self.shadow_digest
        letters_agree = not self.letters_missing and not self.attempts_missing
        totals_agree = self.counters_agree and self.usage_agrees and self.is_order_complete
        totals_agree = totals_agree and self.provenance_agrees
        return rows_agree and letters_agree and totals_agree

    @property
    def has_other_limit(self) -> bool:
        """Whether the job ran under another limit of attempts than the present one."""
        return self.above_limit > 0 or self.below_limit > 0


def rows_equal(left: str, right: str) -> str:
    """Return the SQL condition that two rows of `items` are equal in COLUMNS."""
    lefts, rights = item_columns(COLUMNS, left), item_columns(COLUMNS, right)
    return f"ROW({lefts}) IS NOT DISTINCT FROM ROW({rights})"


_SPAN: Final = "job_day = :day AND job_id = :job AND item_index >= :first AND item_index < :last"
_HASHED: Final = item_columns(COLUMNS).replace("body,", "md5(body),")
_DIGEST: Final = f"""
SELECT md5(string_agg(md5(ROW(item_index, {_HASHED})::text), '' ORDER BY item_index))
FROM {{table}} WHERE {_SPAN}
"""  # noqa: S608  no outside input
_DIFFER: Final = f"""
SELECT count(*) FILTER (WHERE live.item_index IS NULL),
    count(*) FILTER (WHERE shadow.item_index IS NULL),
    count(*) FILTER (WHERE live.item_index IS NOT NULL AND shadow.item_index IS NOT NULL
        AND NOT {rows_equal("live", "shadow")})
FROM (SELECT * FROM items WHERE {_SPAN}) AS live
FULL JOIN (SELECT * FROM {SCHEMA}.items WHERE {_SPAN}) AS shadow USING (item_index)
"""  # noqa: S608  no outside input
_BELOW_LIMIT: Final = f"""
SELECT count(*) FROM (SELECT * FROM items WHERE {_SPAN}) AS live
JOIN (
    SELECT * FROM {SCHEMA}.item_attempts
    WHERE job_id = :job AND item_index >= :first AND item_index < :last
) AS tried USING (item_index, attempt, status_code)
LEFT JOIN (SELECT * FROM {SCHEMA}.items WHERE {_SPAN}) AS shadow USING (item_index)
WHERE live.outcome = {Outcome.FAILED.value} AND coalesce(shadow.attempt, 0) = 0
"""  # noqa: S608
"""Rows with a retryable failure, where the shadow's item still waits for its next attempt or did so
when a close came. Only this shows that the limit of attempts was lower."""

_COUNTERS: Final = f"""
SELECT l.job_id IS NOT NULL AND
    ROW({", ".join(f"l.{n}" for n in COUNTERS)}) = ROW({", ".join(f"s.{n}" for n in COUNTERS)}),
    s.succeeded + s.failed + s.cancelled + s.expired
FROM jobs j JOIN {SCHEMA}.job_counters s ON s.job_id = j.id
LEFT JOIN job_counters l ON l.job_id = j.id
WHERE j.id = :job AND j.deleted_at IS NULL
"""  # noqa: S608

_SUMS: Final = ", ".join(f"sum({name})" for name in USAGE)
_BY_MODEL: Final = f"""
SELECT model, model_version, {_SUMS} FROM {{table}} WHERE job_id = :job
GROUP BY model, model_version HAVING ROW({_SUMS}) <> ROW({", ".join("0" for _ in USAGE)})
"""  # noqa: S608
_LIVE_USAGE: Final = _BY_MODEL.format(table="usage_ledger")
_SHADOW_USAGE: Final = _BY_MODEL.format(table=f"{SCHEMA}.usage_ledger")
_USAGE: Final = f"""
SELECT NOT EXISTS (({_LIVE_USAGE}) EXCEPT ({_SHADOW_USAGE}))
    AND NOT EXISTS (({_SHADOW_USAGE}) EXCEPT ({_LIVE_USAGE}))
"""

_PROVENANCE: Final = f"""
SELECT NOT EXISTS (
    SELECT FROM (SELECT * FROM items WHERE job_day = :day AND job_id = :job) AS live
    JOIN (SELECT * FROM {SCHEMA}.items WHERE job_day = :day AND job_id = :job) AS shadow
        USING (item_index)
    LEFT JOIN job_provenance l ON l.job_id = :job AND l.number = live.provenance
    LEFT JOIN {SCHEMA}.job_provenance s ON s.job_id = :job AND s.number = shadow.provenance
    WHERE live.provenance IS NOT NULL
        AND ROW(l.model, l.model_version, l.base_version, l.engine)
            IS DISTINCT FROM ROW(s.model, s.model_version, s.base_version, s.engine)
) AND NOT EXISTS (
    SELECT FROM job_provenance l WHERE l.job_id = :job AND l.item_count <> (
        SELECT count(*) FROM items
        WHERE job_day = :day AND job_id = :job AND provenance = l.number
    )
)
"""  # noqa: S608
"""Whether each row with a provenance has that of the log, and the counts are those of the rows."""

_ORDER: Final = """
SELECT j.kind <> 'batch' OR (
    SELECT count(*) = j.total_count AND count(DISTINCT item_index) = j.total_count
        AND coalesce(max(first_sequence + place), 0) = j.total_count
    FROM job_slices, unnest(item_indexes) WITH ORDINALITY AS u (item_index, place)
    WHERE job_slices.job_id = j.id
) FROM jobs j WHERE j.id = :job
"""

_MADE_SPAN: Final = "made.job_id = :job AND made.item_index >= :first AND made.item_index < :last"
_MISSING_LETTERS: Final = f"""
SELECT count(*) FROM {SCHEMA}.dead_items made WHERE {_MADE_SPAN} AND NOT EXISTS (
    SELECT FROM dead_items live
    WHERE live.job_id = made.job_id AND live.item_index = made.item_index
)
"""  # noqa: S608  no outside input
_MISSING_ATTEMPTS: Final = f"""
SELECT count(*) FROM {SCHEMA}.item_attempts made
JOIN {SCHEMA}.items ended ON ended.job_day = :day AND ended.job_id = made.job_id
    AND ended.item_index = made.item_index
WHERE {_MADE_SPAN} AND (made.attempt < ended.attempt OR ended.attempt = 0) AND NOT EXISTS (
    SELECT FROM item_attempts live WHERE live.job_id = made.job_id
        AND live.item_index = made.item_index AND live.attempt = made.attempt
)
"""  # noqa: S608
"""Only attempts that led to another one, or waited for it when a close came: whether an attempt in
the group of the final outcome has a row depends on the groups (ADR 20)."""

_FIRST_ROW: Final = f"SELECT extract(epoch FROM min(finished_at))::float8 FROM items WHERE {_SPAN}"  # noqa: S608


def first_row_s(connection: sa.Connection, job: tuple[UUID, int], total_count: int) -> float | None:
    """Return when the first row of a job was written; None without rows."""
    spans = _spans(job, total_count)
    times = [connection.scalar(statement(_FIRST_ROW), span) for span in spans]
    return min((time for time in times if time is not None), default=None)


def compare(
    connection: sa.Connection, job: tuple[UUID, int], total_count: int, *, above_limit: int
) -> Comparison | None:
    """Compare one job (id and day), window by window; None when it was deleted meanwhile.

    `above_limit` comes from the replay.
    """
    live, shadow = sha256(), sha256()
    missing = extra = different = below_limit = letters = attempts = 0
    for span in _spans(job, total_count):
        digests = [
            str(connection.scalar(statement(_DIGEST.format(table=table)), span))
            for table in ("items", f"{SCHEMA}.items")
        ]
        live.update(digests[0].encode())
        shadow.update(digests[1].encode())
        if digests[0] != digests[1]:
            counts = connection.execute(statement(_DIFFER), span).one()
            missing, extra, different = map(
                sum, zip((missing, extra, different), counts, strict=True)
            )
            below_limit += connection.scalar(statement(_BELOW_LIMIT), span) or 0
        letters += connection.scalar(statement(_MISSING_LETTERS), span) or 0
        attempts += connection.scalar(statement(_MISSING_ATTEMPTS), span) or 0
    one = {"job": job[0]}
    counted = connection.execute(statement(_COUNTERS), one).one_or_none()
    if counted is None:
        return None
    counters_agree, ended = counted
    of_rows = one | {"day": job[1]}
    return Comparison(
        live.hexdigest(),
        shadow.hexdigest(),
        missing,
        extra,
        different,
        counters_agree,
        bool(connection.scalar(statement(_USAGE), one)),
        bool(connection.scalar(statement(_ORDER), one)),
        ended,
        provenance_agrees=bool(connection.scalar(statement(_PROVENANCE), of_rows)),
        letters_missing=letters,
        attempts_missing=attempts,
        above_limit=above_limit,
        below_limit=below_limit,
    )


def _spans(job: tuple[UUID, int], total_count: int) -> Iterator[dict[str, object]]:
    job_id, day = job
    for first in range(0, total_count, WINDOW_ITEMS):
        yield {"day": day, "job": job_id, "first": first, "last": first + WINDOW_ITEMS}
