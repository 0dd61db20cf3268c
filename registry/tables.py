"""The table of model versions."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    DateTime,
    Identity,
    Table,
    Text,
    UniqueConstraint,
    func,
)

from storage.postgres.metadata import metadata

model_versions: Final = Table(
    "model_versions",
    metadata,
    Column[int]("id", BigInteger, Identity(), primary_key=True),
    Column[str]("name", Text, nullable=False),
    Column[str]("version", Text, nullable=False),
    Column[str]("pool", Text, nullable=False, comment="names the topics batches.<pool>.*"),
    Column[str]("engine", Text, nullable=False, comment="vllm, openai_http or simulated"),
    Column[list[str]]("endpoints", ARRAY(Text), nullable=False),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    Column[datetime](
        "registered_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.now(),
        comment="when it was last registered; the latest of its name serves new jobs",
    ),
    UniqueConstraint("name", "version"),
    comment="The version registered last serves new jobs; a job keeps the one it began with",
)
