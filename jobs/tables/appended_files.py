"""The table of files appended to jobs; the first file of a job is in the job's row."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import metadata

job_inputs: Final = Table(
    "job_inputs",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), nullable=False),
    Column[int]("number", SmallInteger, nullable=False, comment="from 1, in the order of appends"),
    Column[object]("file_id", ForeignKey("files.id"), nullable=False),
    Column[str]("object_key", Text, nullable=False, comment="pinned until the job is terminal"),
    Column[int]("size_bytes", BigInteger, nullable=False),
    Column[str](
        "state",
        Text,
        nullable=False,
        server_default="validating",
        comment="validating, accepted, refused, or dropped: its job closed first",
    ),
    Column[int]("first_index", Integer, comment="of its items in the job; set when accepted"),
    Column[int]("item_count", Integer, comment="set when accepted"),
    Column[object]("errors", JSONB, comment="first validation errors, as shown"),
    Column[int]("error_count", Integer, nullable=False, server_default="0"),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    PrimaryKeyConstraint("job_id", "number"),
    Index("ix_job_inputs_file_id", "file_id"),
    Index("ix_job_inputs_validating", "job_id", postgresql_where=text("state = 'validating'")),
    Index(
        "ix_job_inputs_reading",
        "file_id",
        postgresql_where=text("state IN ('validating', 'accepted')"),
    ),
    comment="Files appended to jobs; the items of each follow those of the files before",
)
