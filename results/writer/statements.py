"""Statements of the results writer for the driver's cursor, with `%b` parameters.

They are text and not built with SQLAlchemy because they are hot: at thousands of rows a second,
compiling them and processing their parameters and rows in Python costs more than Postgres does.
"""

from typing import Final

READ_JOB_COUNTERS: Final = """
SELECT c.job_id, c.closed_reason, j.total_count,
    (j.created_at AT TIME ZONE 'UTC')::date - DATE '1970-01-01',
    c.succeeded + c.failed + c.cancelled + c.expired,
    j.max_failed_items, j.max_failed_ratio, j.failed_ratio_sample, j.max_total_tokens,
    c.succeeded, c.failed, c.input_tokens + c.output_tokens, j.deduplicate,
    j.models IS NOT NULL
FROM job_counters c JOIN jobs j ON j.id = c.job_id
WHERE c.job_id = ANY(%b::uuid[])
ORDER BY c.job_id
"""

LOCK_JOBS: Final = f"{READ_JOB_COUNTERS}FOR UPDATE OF c\n"
"""Locked in id order, so that two writers cannot deadlock. Under this lock no other writer adds
rows of these jobs, and later statements see all rows that were added before."""

COPY_ITEMS: Final = """
COPY items (job_id, job_day, item_index, outcome, status_code, attempt, input_tokens, output_tokens,
    cached_tokens, reasoning_tokens, custom_id, error_code, error_message, body, body_key,
    queue_ms, batch_wait_ms, execution_ms, result_ms, provenance)
FROM STDIN (FORMAT BINARY)
"""

COPY_TYPES: Final = (
    "bytea",  # of job_id: the uuid's 16 bytes, which the driver passes on without a Python call
    *("int4", "int4", "int2", "int2", "int2", "int4", "int4", "int4", "int4"),
    *("text", "text", "text", "bytea", "text"),
    *("int4", "int4", "int4", "int4", "int2"),
)
"""How the driver encodes each column of `COPY_ITEMS`."""

COUNT_PROVENANCE: Final = """
INSERT INTO job_provenance AS known (job_id, number, model, model_version, base_version, engine,
    item_count)
SELECT added.job_id,
    coalesce(last.number, 0)
        + row_number() OVER (PARTITION BY added.job_id ORDER BY found.is_known, added.place),
    added.model, added.model_version, added.base_version, added.engine, added.item_count
FROM unnest(%b::uuid[], %b::text[], %b::text[], %b::text[], %b::text[], %b::int[])
    WITH ORDINALITY
    AS added (job_id, model, model_version, base_version, engine, item_count, place)
CROSS JOIN LATERAL (
    SELECT max(number) AS number FROM job_provenance WHERE job_id = added.job_id
) AS last
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT FROM job_provenance p WHERE p.job_id = added.job_id AND p.model = added.model
            AND p.model_version = added.model_version AND p.base_version = added.base_version
            AND p.engine = added.engine
    ) AS is_known
) AS found
ON CONFLICT (job_id, model, model_version, base_version, engine)
    DO UPDATE SET item_count = known.item_count + excluded.item_count
RETURNING job_id, number, model, model_version, base_version, engine
"""
"""Returns the number of each. New ones are numbered first, so that no number is left out."""

FIND_EXISTING: Final = """
SELECT given.item_index
FROM unnest(%b::int[]) AS given (item_index)
CROSS JOIN LATERAL (
    SELECT FROM items WHERE job_day = %b::int AND job_id = %b::uuid
        AND items.item_index = given.item_index LIMIT 1
) AS found
"""
"""LATERAL with LIMIT forces one index probe per item, whatever the planner estimates."""

FIND_COPIES_DUE: Final = """
SELECT c.original_index, count(*), min(done.size_bytes)
FROM item_copies c
CROSS JOIN LATERAL (
    SELECT coalesce(octet_length(body), 0) AS size_bytes FROM items
    WHERE job_day = %b::int AND job_id = %b::uuid AND item_index = c.original_index LIMIT 1
) AS done
LEFT JOIN LATERAL (
    SELECT 1 AS found FROM items
    WHERE job_day = %b::int AND job_id = %b::uuid AND item_index = c.item_index LIMIT 1
) AS own ON true
WHERE c.job_id = %b::uuid AND {of_these} c.item_index >= %b::int AND c.item_index < %b::int
    AND own.found IS NULL
GROUP BY c.original_index ORDER BY c.original_index
"""
"""Originals that have their row, the number of their copies in a range that have none, and the
size of each body."""

FIND_COPY_INDEXES: Final = "c.original_index = ANY(%b::int[]) AND"
"""Restricts `FIND_COPIES_DUE` to some originals."""

HAS_MORE_COPIES: Final = """
SELECT EXISTS (
    SELECT FROM item_copies WHERE job_id = %b::uuid AND original_index = ANY(%b::int[])
        AND item_index >= %b::int AND item_index < %b::int
    OFFSET %b::int
)
"""
"""Whether originals have more than a number of copies in a range; counts no further."""

INSERT_COPIES: Final = """
WITH due AS (
    SELECT c.item_index, c.original_index, c.custom_id
    FROM item_copies c
    LEFT JOIN LATERAL (
        SELECT 1 AS found FROM items
        WHERE job_day = %b::int AND job_id = %b::uuid AND item_index = c.item_index LIMIT 1
    ) AS own ON true
    WHERE c.job_id = %b::uuid AND c.original_index = ANY(%b::int[])
        AND c.item_index >= %b::int AND c.item_index < %b::int AND own.found IS NULL
    ORDER BY c.original_index, c.item_index LIMIT %b::int
)
INSERT INTO items (job_id, job_day, item_index, outcome, status_code, attempt, input_tokens,
    output_tokens, cached_tokens, reasoning_tokens, custom_id, error_code, error_message, body,
    body_key, copied_from, provenance)
SELECT done.job_id, done.job_day, due.item_index, done.outcome, done.status_code, 0, 0, 0, 0, 0,
    nullif(due.custom_id, ''), done.error_code, done.error_message, done.body, done.body_key,
    due.original_index, done.provenance
FROM due
CROSS JOIN LATERAL (
    SELECT * FROM items
    WHERE job_day = %b::int AND job_id = %b::uuid AND item_index = due.original_index LIMIT 1
) AS done
ON CONFLICT DO NOTHING
RETURNING item_index, outcome, status_code, custom_id, error_code,
    CASE outcome WHEN 2 THEN substring(body, 1, 4096) END, provenance
"""
"""Bodies stay in Postgres; of failures the first bytes are returned, which hold their code."""

COUNT_COPIES: Final = """
WITH made AS (
    SELECT * FROM unnest(%b::smallint[], %b::int[]) AS made (number, copy_count)
), counted AS (
    UPDATE job_counters SET copied = copied + (SELECT sum(copy_count) FROM made)
    WHERE job_id = %b::uuid
), traced AS (
    UPDATE job_provenance SET item_count = item_count + made.copy_count
    FROM made WHERE job_id = %b::uuid AND job_provenance.number = made.number
)
INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count, input_tokens,
    output_tokens, cached_tokens, reasoning_tokens, copied_count)
SELECT jobs.tenant_id, jobs.id, billed.model, billed.model_version, 0, 0, 0, 0, 0,
    sum(made.copy_count)
FROM jobs CROSS JOIN made
LEFT JOIN job_provenance origin
    ON origin.job_id = jobs.id AND origin.number = made.number AND jobs.models IS NOT NULL
CROSS JOIN LATERAL (
    SELECT coalesce(origin.model, jobs.model) AS model,
        coalesce(origin.model_version, jobs.model_version) AS model_version
) AS billed
WHERE jobs.id = %b::uuid
GROUP BY jobs.tenant_id, jobs.id, billed.model, billed.model_version
"""
"""Adds copies by the number of their provenance, which may be NULL. The ledger has the number of
copies and no tokens for them."""

INSERT_MISSING: Final = """
WITH inserted AS (
    INSERT INTO items (job_id, job_day, item_index, outcome, status_code, attempt,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens, error_code)
    SELECT %b::uuid, %b::int, item_index, %b::smallint, 0, 0, 0, 0, 0, 0, %b::text
    FROM generate_series(%b::int, %b::int) AS item_index
    ON CONFLICT DO NOTHING
    RETURNING item_index
)
SELECT count(*), coalesce(array_agg(item_index ORDER BY item_index), '{}')::text FROM inserted
"""

SET_CLOSED: Final = """
UPDATE job_counters SET closed_reason = %b::text, updated_at = now()
WHERE job_id = %b::uuid AND closed_reason IS NULL
"""

COUNT_AND_SETTLE: Final = """
WITH added AS (
    SELECT * FROM unnest(%b::uuid[], %b::int[], %b::int[], %b::int[], %b::int[], %b::int[],
        %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::text[])
    AS sums (job_id, succeeded, failed, cancelled, expired, executed,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens, item_indexes)
), by_model AS (
    SELECT * FROM unnest(%b::uuid[], %b::text[], %b::text[], %b::int[],
        %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[])
    AS spent (job_id, model, model_version, executed,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens)
), counted AS (
    UPDATE job_counters c SET
        succeeded = c.succeeded + added.succeeded,
        failed = c.failed + added.failed,
        cancelled = c.cancelled + added.cancelled,
        expired = c.expired + added.expired,
        input_tokens = c.input_tokens + added.input_tokens,
        output_tokens = c.output_tokens + added.output_tokens,
        cached_tokens = c.cached_tokens + added.cached_tokens,
        reasoning_tokens = c.reasoning_tokens + added.reasoning_tokens,
        updated_at = now()
    FROM added WHERE c.job_id = added.job_id
    RETURNING c.job_id, c.succeeded + c.failed + c.cancelled + c.expired AS ended
), billed AS (
    INSERT INTO usage_ledger (tenant_id, job_id, model, model_version, item_count,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens, degraded)
    SELECT jobs.tenant_id, jobs.id, jobs.model, jobs.model_version, added.executed,
        added.input_tokens, added.output_tokens, added.cached_tokens, added.reasoning_tokens,
        jobs.degraded
    FROM added JOIN jobs ON jobs.id = added.job_id
    WHERE added.executed > 0 AND jobs.models IS NULL
    UNION ALL
    SELECT jobs.tenant_id, jobs.id, coalesce(by_model.model, jobs.model),
        coalesce(by_model.model_version, jobs.model_version), by_model.executed,
        by_model.input_tokens, by_model.output_tokens, by_model.cached_tokens,
        by_model.reasoning_tokens, jobs.degraded
    FROM by_model JOIN jobs ON jobs.id = by_model.job_id AND jobs.models IS NOT NULL
    WHERE by_model.executed > 0
), sliced AS (
    INSERT INTO job_slices (job_id, first_sequence, item_indexes)
    SELECT added.job_id,
        counted.ended - added.succeeded - added.failed - added.cancelled - added.expired,
        added.item_indexes::int[]
    FROM added
    JOIN counted ON counted.job_id = added.job_id
    JOIN jobs ON jobs.id = added.job_id AND jobs.kind = 'batch'
    WHERE added.item_indexes <> '{}'
)
UPDATE jobs SET
    settled_at = now(),
    state = CASE state WHEN 'in_progress' THEN 'finalizing' ELSE state END,
    finalizing_at = CASE state WHEN 'in_progress' THEN now() ELSE finalizing_at END
FROM counted
WHERE jobs.id = counted.job_id AND jobs.total_count = counted.ended AND jobs.total_final
    AND jobs.settled_at IS NULL AND jobs.state IN ('in_progress', 'cancelling')
RETURNING jobs.id, jobs.tenant_id, jobs.state, extract(epoch FROM now())::float8, jobs.kind
"""
"""Adds counters, ledger entries and the order of results, and settles jobs, in one round trip.
Returns the jobs that settled. Ledger entries of a job with several models are `by_model`."""

INSERT_PROCESS_ENDS: Final = """
INSERT INTO job_process_ends (job_id, process_id) SELECT %b::uuid, unnest(%b::uuid[])
ON CONFLICT DO NOTHING
"""

COUNT_PROCESS_ENDS: Final = "SELECT count(*) FROM job_process_ends WHERE job_id = %b::uuid"

RECORD_ATTEMPTS: Final = """
INSERT INTO item_attempts (job_id, item_index, attempt, status_code, code)
SELECT %b::uuid, item_index, attempt, status_code, code
FROM unnest(%b::int[], %b::int[], %b::int[], %b::text[])
    AS failed (item_index, attempt, status_code, code)
ON CONFLICT DO NOTHING
RETURNING item_index, attempt
"""
"""Returns the failures that were new: each one has its effect once, however often it comes."""

SCHEDULE_RETRIES: Final = """
INSERT INTO item_retries (job_id, item_index, attempt, due_at, line_offset)
SELECT jobs.id, waiting.item_index, waiting.attempt,
    now() + least(make_interval(secs => waiting.wait_s),
        greatest((jobs.expires_at - now()) / 4, interval '0')),
    waiting.line_offset
FROM jobs, unnest(%b::int[], %b::int[], %b::float8[], %b::bigint[])
    AS waiting (item_index, attempt, wait_s, line_offset)
WHERE jobs.id = %b::uuid
ON CONFLICT DO NOTHING
"""
"""No wait takes more than a quarter of the job's remaining time."""

DROP_RETRIES: Final = """
DELETE FROM item_retries WHERE (job_id, item_index, attempt) IN (
    SELECT job_id, item_index, attempt FROM item_retries
    WHERE job_id = %b::uuid AND item_index BETWEEN %b::int AND %b::int
    FOR UPDATE SKIP LOCKED
)
"""
"""For a close. Locked rows are being emitted by intake, which deletes them itself."""

INSERT_DEAD_ITEMS: Final = """
INSERT INTO dead_items (job_id, item_index, tenant_id, job_day, attempt, line_offset)
SELECT jobs.id, dead.item_index, jobs.tenant_id, %b::int, dead.attempt, dead.line_offset
FROM jobs, unnest(%b::int[], %b::int[], %b::bigint[]) AS dead (item_index, attempt, line_offset)
WHERE jobs.id = %b::uuid AND jobs.kind = 'batch'
ON CONFLICT DO NOTHING
RETURNING tenant_id, extract(epoch FROM now())::float8
"""
"""Batches only: a single request has no line that could be sent again."""

FIND_ATTEMPTS: Final = """
SELECT item_index, attempt, status_code, code, extract(epoch FROM failed_at)::float8
FROM item_attempts WHERE job_id = %b::uuid AND item_index = ANY(%b::int[])
ORDER BY item_index, attempt
"""
