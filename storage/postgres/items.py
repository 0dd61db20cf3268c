"""Tables of finished items and of the order of results, and column lists for statements in text.

Readers use the tables. Statements for the driver's cursor (COPY, streams, LATERAL probes for pages
of rows) are text, because they are hot: SQLAlchemy's row processing would cost more than the query.
They build their column lists with `item_columns`, so that an unknown column fails at import.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from sqlalchemy import (
    ARRAY,
    Column,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from storage.postgres.metadata import Timestamp, metadata

items: Final = Table(
    "items",
    metadata,
    Column[object]("job_id", Uuid, nullable=False),
    Column[int]("job_day", Integer, nullable=False, comment="days since 1970-01-01"),
    Column[int]("item_index", Integer, nullable=False),
    Column[int]("outcome", SmallInteger, nullable=False, comment="core.outcomes.Outcome"),
    Column[int]("status_code", SmallInteger, nullable=False, comment="0: no answer"),
    Column[int]("attempt", SmallInteger, nullable=False),
    Column[int]("input_tokens", Integer, nullable=False),
    Column[int]("output_tokens", Integer, nullable=False),
    Column[int]("cached_tokens", Integer, nullable=False),
    Column[int]("reasoning_tokens", Integer, nullable=False),
    Column[datetime]("finished_at", Timestamp, nullable=False, server_default=func.now()),
    Column[str]("custom_id", Text, comment="NULL: never read by a consumer; the input file has it"),
    Column[str]("error_code", Text),
    Column[str]("error_message", Text),
    Column[bytes]("body", LargeBinary),
    Column[str]("body_key", Text, comment="object that holds a body too large for a record"),
    Column[int]("copied_from", Integer, comment="index of the identical item whose result this is"),
    Column[int](
        "queue_ms",
        Integer,
        comment="on the log until a batcher read it; NULL: unknown, as of an older release",
    ),
    Column[int]("batch_wait_ms", Integer, comment="in the batcher"),
    Column[int]("execution_ms", Integer, comment="in the engine, its queue included"),
    Column[int]("result_ms", Integer, comment="from the end of the execution to this row"),
    Column[int](
        "provenance",
        SmallInteger,
        comment="number in job_provenance; NULL: it did not run, or in an older release",
    ),
    PrimaryKeyConstraint("job_day", "job_id", "item_index"),
    Index(
        "ix_items_failed",
        "job_day",
        "job_id",
        "finished_at",
        "item_index",
        postgresql_where=text("outcome = 2"),
    ),
    postgresql_partition_by="RANGE (job_day)",
    comment="Exactly one row per item, written by the results writer alone",
)

job_slices: Final = Table(
    "job_slices",
    metadata,
    Column[object]("job_id", Uuid, nullable=False),
    Column[int](
        "first_sequence", Integer, nullable=False, comment="items that had their row before"
    ),
    Column[list[int]](
        "item_indexes", ARRAY(Integer), nullable=False, comment="in the order of their sequence"
    ),
    PrimaryKeyConstraint("job_id", "first_sequence"),
    comment="The order in which items of batches got their rows: one row per job and commit of "
    "the results writer",
)

job_provenance: Final = Table(
    "job_provenance",
    metadata,
    Column[object]("job_id", Uuid, nullable=False),
    Column[int]("number", SmallInteger, nullable=False),
    Column[str]("model", Text, nullable=False, comment="as its requests name it"),
    Column[str]("model_version", Text, nullable=False),
    Column[str]("base_version", Text, nullable=False, server_default=""),
    Column[str]("engine", Text, nullable=False, server_default="", comment="its hash"),
    Column[int]("item_count", Integer, nullable=False, server_default="0"),
    PrimaryKeyConstraint("job_id", "number"),
    Index(
        "uq_job_provenance_job_id",
        "job_id",
        "model",
        "model_version",
        "base_version",
        "engine",
        unique=True,
    ),
    comment="The versions and engines that ran items of a job",
)


def item_columns(names: Iterable[str], alias: str = "") -> str:
    """Return columns of `items` as text for a SELECT. Raises KeyError for an unknown column."""
    prefix = f"{alias}." if alias else ""
    return ", ".join(prefix + items.c[name].name for name in names)
