"""The tables of model versions, their signatures, and what names mean."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
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
    Column[str](
        "verification",
        Text,
        nullable=False,
        server_default="legacy",
        comment="signed, unverified (no files of ours) or legacy (from before manifests)",
    ),
    Column[str]("base_version", Text, comment="of an adapter: the version that it adapts"),
    Column[object]("tenant_id", Uuid, comment="whose private adapter it is; NULL: all tenants'"),
    Column[datetime](
        "retired_at", DateTime(timezone=True), comment="it must not be loaded any more"
    ),
    UniqueConstraint("name", "version"),
    CheckConstraint(
        "verification IN ('signed', 'unverified', 'legacy')", name="verification_known"
    ),
    comment="The version registered last serves new jobs; a job keeps the one it began with",
)

model_manifests: Final = Table(
    "model_manifests",
    metadata,
    Column[str]("version", Text, primary_key=True, comment="SHA-256 of the manifest"),
    Column[bytes]("manifest", LargeBinary, nullable=False, comment="canonical JSON"),
    Column[int]("total_bytes", BigInteger, nullable=False, comment="of its files"),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    comment="Append-only: what each signed version of a model is",
)

model_keys: Final = Table(
    "model_keys",
    metadata,
    Column[str]("key_id", Text, primary_key=True, comment="SHA-256 of the PEM text"),
    Column[str]("pem", Text, nullable=False, comment="a public key"),
    Column[str]("name", Text, nullable=False),
    Column[datetime](
        "added_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    Column[datetime]("revoked_at", DateTime(timezone=True), comment="its signatures do not count"),
    comment="Keys whose signatures of models are accepted at registration",
)

model_signatures: Final = Table(
    "model_signatures",
    metadata,
    Column[str]("version", ForeignKey(model_manifests.c.version), primary_key=True),
    Column[str]("key_id", Text, primary_key=True),
    Column[bytes]("bundle", LargeBinary, nullable=False, comment="OpenSSF Model Signing 1.0"),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    comment="Append-only: signatures of versions",
)

model_names: Final = Table(
    "model_names",
    metadata,
    Column[int]("id", BigInteger, Identity(), primary_key=True),
    Column[str]("name", Text, nullable=False),
    Column[int]("version_id", ForeignKey(model_versions.c.id), comment="the version that it means"),
    Column[str]("alias_of", Text, comment="of an alias: a name, or name@version"),
    Column[object]("tenant_id", Uuid, comment="who alone sees it; NULL: all tenants"),
    Column[datetime](
        "set_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.clock_timestamp(),
    ),
    CheckConstraint("version_id IS NULL OR alias_of IS NULL", name="one_meaning"),
    Index("ix_model_names_name_id", "name", "id"),
    comment="Append-only: what a name means from when on; the last row of a name counts, "
    "and one without version and alias removes it",
)
