"""The table of items that are copies of an earlier item of the same job (deduplication)."""

from typing import Final

from sqlalchemy import Column, ForeignKey, Index, Integer, PrimaryKeyConstraint, Table, Text

from storage.postgres.metadata import metadata

item_copies: Final = Table(
    "item_copies",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column[int]("item_index", Integer, nullable=False),
    Column[int]("original_index", Integer, nullable=False, comment="the first item that is equal"),
    Column[str]("custom_id", Text, nullable=False),
    PrimaryKeyConstraint("job_id", "item_index"),
    Index("ix_item_copies_original", "job_id", "original_index", "item_index"),
    comment="Items that are never executed: they take over the result of an identical one. "
    "Written by intake before the file counts, so those at or above total_count mean nothing yet",
)
