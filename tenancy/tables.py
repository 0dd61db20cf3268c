"""Tables of tenants, API keys, operator keys, the usage ledger and the audit log.

Triggers reject changes of audit entries and lower head sequences.
"""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import Timestamp, metadata

tenants: Final = Table(
    "tenants",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[str]("name", Text, nullable=False, unique=True),
    Column[int]("stored_bytes_max", BigInteger, comment="NULL: the installation's default"),
    Column[int](
        "response_cache_ttl_s",
        Integer,
        comment="how long an answer may be given again; NULL: never",
    ),
    Column[int](
        "call_timeout_ms",
        BigInteger,
        comment="longest time an online call may take; NULL: the installation's limit",
    ),
    Column[bool](
        "zero_retention",
        Boolean,
        nullable=False,
        server_default="false",
        comment="keeps nothing but the ledger: bodies are encrypted, and go soon after the end",
    ),
    Column[datetime](
        "zero_retention_since",
        Timestamp,
        comment="with zero_retention: of what was created from then on; NULL: of everything",
    ),
    Column[int](
        "weight",
        SmallInteger,
        nullable=False,
        server_default="1",
        comment="its share of a pool, in relation to those of other tenants",
    ),
    Column[dict[str, float]](
        "reserved_shares",
        JSONB,
        nullable=False,
        server_default="{}",
        comment="by pool the fraction that it gets at least while it has work; *: of every other",
    ),
    Column[str](
        "priority_class",
        Text,
        nullable=False,
        server_default="normal",
        comment="core.tenant_claims.PriorityClass",
    ),
    Column[str](
        "bulk_hours",
        Text,
        comment="when items of its bulk jobs may be emitted; NULL: at any time",
    ),
    Column[str](
        "infeasible_jobs",
        Text,
        nullable=False,
        server_default="accept",
        comment="what happens to valid jobs that cannot meet their deadline: accept, mark or fail",
    ),
    Column[int](
        "degraded_output_tokens_max",
        Integer,
        comment="output tokens of its calls while their pool is overloaded; NULL: as requested",
    ),
    Column[str](
        "degraded_model",
        Text,
        comment="model of its calls that their own would refuse for load; NULL: they are refused",
    ),
    Column[datetime]("created_at", Timestamp, nullable=False, server_default=func.now()),
    Column[datetime](
        "deleted_at",
        Timestamp,
        comment="nothing of it shows from then on, and all its data is being removed",
    ),
    Column[datetime](
        "erased_at",
        Timestamp,
        comment="when nothing but tombstones was left; the row goes with the last of them",
    ),
    CheckConstraint("weight BETWEEN 1 AND 1000", name="weight_in_range"),
    CheckConstraint("jsonb_typeof(reserved_shares) = 'object'", name="reserved_shares_by_pool"),
    CheckConstraint("priority_class IN ('high', 'normal', 'low')", name="priority_class_known"),
    CheckConstraint("degraded_output_tokens_max > 0", name="degraded_output_tokens_positive"),
    CheckConstraint("infeasible_jobs IN ('accept', 'mark', 'fail')", name="infeasible_jobs_known"),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[object]("tenant_id", ForeignKey("tenants.id"), nullable=False, index=True),
    Column[str]("name", Text, nullable=False),
    Column[bytes](
        "secret_sha256",
        LargeBinary,
        nullable=False,
        unique=True,
        comment="SHA-256 of 256 random bits: enough to need no slow hash",
    ),
    Column[str]("hint", Text, nullable=False, comment="last characters, to tell keys apart"),
    Column[datetime]("created_at", Timestamp, nullable=False, server_default=func.now()),
    Column[datetime]("revoked_at", Timestamp),
)

operator_keys: Final = Table(
    "operator_keys",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[str]("name", Text, nullable=False),
    Column[str]("role", Text, nullable=False, comment="tenancy.operator_keys.OperatorRole"),
    Column[bytes](
        "secret_sha256",
        LargeBinary,
        nullable=False,
        unique=True,
        comment="SHA-256 of 256 random bits: enough to need no slow hash",
    ),
    Column[str]("hint", Text, nullable=False, comment="last characters, to tell keys apart"),
    Column[datetime]("created_at", Timestamp, nullable=False, server_default=func.now()),
    Column[datetime]("revoked_at", Timestamp),
    comment="Keys of the installation; no tenant's role may read this table",
)

usage_ledger: Final = Table(
    "usage_ledger",
    metadata,
    Column[int]("id", BigInteger, primary_key=True, autoincrement=True),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[object]("job_id", Uuid, nullable=False),
    Column[str]("model", Text, nullable=False),
    Column[str]("model_version", Text, nullable=False),
    Column[int]("item_count", BigInteger, nullable=False),
    Column[int]("input_tokens", BigInteger, nullable=False),
    Column[int]("output_tokens", BigInteger, nullable=False),
    Column[int]("cached_tokens", BigInteger, nullable=False),
    Column[int]("reasoning_tokens", BigInteger, nullable=False),
    Column[int](
        "copied_count",
        BigInteger,
        nullable=False,
        server_default="0",
        comment="items that took over the result of another one; they cost nothing",
    ),
    Column[str](
        "degraded",
        Text,
        comment="what was changed of its calls because of load; NULL: nothing",
    ),
    Column[datetime]("created_at", Timestamp, nullable=False, server_default=func.now()),
    Index("ix_usage_ledger_job_id", "job_id"),
    Index("ix_usage_ledger_tenant_id_created_at", "tenant_id", "created_at"),
    comment="Append-only: one row per job and commit of the results writer",
)


audit_log: Final = Table(
    "audit_log",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[int]("sequence", BigInteger, nullable=False, comment="in the tenant's chain, from 1"),
    Column[datetime]("created_at", Timestamp, nullable=False),
    Column[str]("actor", Text, nullable=False, comment="a key's id, or cli"),
    Column[str]("action", Text, nullable=False, comment="tenancy.audit_log.Action"),
    Column[str]("subject", Text, nullable=False, comment="the id of what it was done to"),
    Column[dict[str, object]]("details", JSONB, nullable=False),
    Column[bytes]("previous_hash", LargeBinary, nullable=False),
    Column[bytes](
        "hash", LargeBinary, nullable=False, comment="SHA-256 over this row and the hash before"
    ),
    Index("uq_audit_log_tenant_id_sequence", "tenant_id", "sequence", unique=True),
    comment="Append-only: what was done, by whom and when; names nothing that a user wrote",
)

audit_heads: Final = Table(
    "audit_heads",
    metadata,
    Column[object]("tenant_id", Uuid, primary_key=True),
    Column[int]("sequence", BigInteger, nullable=False, comment="of the last row; 0: none yet"),
    Column[bytes]("hash", LargeBinary, nullable=False),
    comment="The end of each tenant's chain in audit_log; it only ever moves on by one",
)
