"""Tables of a job's leases, cursor and counters: separate rows with one writer each."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Integer,
    Table,
    Text,
    func,
)

from storage.postgres.metadata import metadata

job_leases: Final = Table(
    "job_leases",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column[str]("role", Text, primary_key=True, comment="intake or finaliser"),
    Column[str]("holder", Text, nullable=False),
    Column[int]("epoch", BigInteger, nullable=False, comment="grows with each new holder"),
    Column[datetime]("expires_at", DateTime(timezone=True), nullable=False),
)

job_cursors: Final = Table(
    "job_cursors",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column[int]("byte_offset", BigInteger, nullable=False, server_default="0"),
    Column[int]("line_number", Integer, nullable=False, server_default="0"),
    Column[int]("item_index", Integer, nullable=False, server_default="0"),
    Column[datetime](
        "repaired_at", DateTime(timezone=True), comment="last emission of lost items again"
    ),
    Column[int](
        "void_below",
        Integer,
        nullable=False,
        server_default="0",
        comment="what jobs.void_below made void up to here is on the log again",
    ),
    Column[int](
        "fence",
        Integer,
        nullable=False,
        server_default="0",
        comment="records of a lower control version do not move it",
    ),
    Column[int](
        "copy_count",
        Integer,
        nullable=False,
        server_default="0",
        comment="items before that are copies: they were never emitted",
    ),
    comment="How far intake has expanded the input file; everything before was acknowledged",
)

job_counters: Final = Table(
    "job_counters",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column[int]("succeeded", Integer, nullable=False, server_default="0"),
    Column[int]("failed", Integer, nullable=False, server_default="0"),
    Column[int]("cancelled", Integer, nullable=False, server_default="0"),
    Column[int]("expired", Integer, nullable=False, server_default="0"),
    Column[int]("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int]("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int]("cached_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int]("reasoning_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int](
        "copied",
        Integer,
        nullable=False,
        server_default="0",
        comment="of those that ended, copies of another item",
    ),
    Column[str]("closed_reason", Text, comment="set when the close record was read from the log"),
    Column[datetime](
        "updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    comment="Written by the results writer alone, in the transaction that inserts the item rows",
)
