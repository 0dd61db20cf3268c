"""Audit entries of replicas that refused a model version, one a day for each pool and reason.

A replica that refuses its version ends and is started again every few seconds, with a new id, and
every API process reads its reports. So an entry is written only if the chain of the installation
has none like it.
"""

import logging
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from storage.postgres.database_times import seconds
from tenancy.audit_log import SYSTEM, Action
from tenancy.installation_log import INSTALLATION, Operator, record_operator_event
from tenancy.tables import audit_heads, audit_log

REPEATED_AFTER_S: Final = 86_400.0
"""Seconds after which the same refusal gets another entry."""

ENTRIES_MAX: Final = 1_000
"""Entries of refusals in that time. Further refusals get none."""

LOOK_BACK: Final = 10_000
"""Rows at the end of the chain that are searched for entries. An installation that has more within
a day may get a second entry of one refusal on that day."""

FULL_RETRY_S: Final = 3_600.0
"""Seconds after which a refusal is tried again that got no entry because of `ENTRIES_MAX`."""

_LOG = logging.getLogger(__name__)
_LOCK: Final = sa.text("SELECT pg_advisory_xact_lock(hashtextextended('model.refused', 0))")


class ModelRefusal(NamedTuple):
    """A replica of a pool did not load a model version."""

    pool: str
    version: str | None  # SHA-256 of a manifest; None: the replica names none
    reason: str  # the label of `millrace_model_refused_total`


def record_model_refusal(connection: sa.Connection, refusal: ModelRefusal) -> float:
    """Insert the entry of a refusal unless a recent one exists. Call it last in a transaction.

    Returns after how many seconds the same refusal is due again. Other callers wait for the end of
    this transaction (READ COMMITTED), so two processes never write the same entry.
    """
    connection.execute(_LOCK)
    head = sa.select(audit_heads.c.sequence).where(audit_heads.c.tenant_id == INSTALLATION)
    found = connection.execute(recent_entries(refusal, connection.scalar(head) or 0)).one()
    if found.age_s is not None:
        return max(0.0, REPEATED_AFTER_S - float(found.age_s))
    if found.entry_count >= ENTRIES_MAX:
        _LOG.warning("too many refused models for the audit log", extra=refusal._asdict())
        return FULL_RETRY_S
    record_operator_event(
        connection, Operator(SYSTEM), Action.MODEL_REFUSED, refusal.pool, refusal._asdict()
    )
    return REPEATED_AFTER_S


def recent_entries(refusal: ModelRefusal, head_sequence: int) -> sa.Select[Any, Any]:
    """Return the query of how many refusals have recent entries, and the age of this one's.

    It reads the last rows of the chain by their sequence: times never decrease along a chain, and
    `audit_log` has no index on them.
    """
    columns = audit_log.c
    age = sa.func.clock_timestamp() - sa.func.max(columns.created_at).filter(
        columns.subject == refusal.pool,
        columns.details["version"].astext.is_not_distinct_from(refusal.version),
        columns.details["reason"].astext == refusal.reason,
    )
    return sa.select(
        sa.func.count().label("entry_count"), sa.func.extract("epoch", age).label("age_s")
    ).where(
        columns.tenant_id == INSTALLATION,
        columns.sequence > head_sequence - LOOK_BACK,
        columns.action == Action.MODEL_REFUSED.value,
        columns.created_at > sa.func.now() - seconds(REPEATED_AFTER_S),
    )
