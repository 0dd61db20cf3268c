"""Tenants: the owners of files, jobs and keys. The API key alone determines the tenant."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final
from unicodedata import category
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.bulk_hours import InvalidBulkHoursError, parse_bulk_hours
from core.errors import Disposition, MillraceError
from core.ids import TENANT, new_uuid, public_id
from tenancy.audit_log import Action, Details
from tenancy.installation_log import CLI_OPERATOR, Operator, record_tenant_event
from tenancy.tables import tenants

NAME_CHARS_MAX: Final = 256
"""Longest name of a tenant or a key."""

WEIGHT_MAX: Final = 1000
"""Largest weight of a tenant."""

OUTPUT_TOKENS_MAX: Final = 10_000_000
"""Largest cap of the output of a tenant's calls: more than any context."""

MODEL_NAME: Final = re.compile(r"[!-~]{1,256}")
"""A name that a model may have: visible ASCII."""


class InfeasibleJobs(StrEnum):
    """What happens to a valid job that cannot meet its deadline."""

    ACCEPT = "accept"
    MARK = "mark"  # it is accepted, and shown as expected to be late
    FAIL = "fail"


_UNSEEN: Final = frozenset(
    {"Cc", "Cs", "Zl", "Zp"}
)  # Unicode: control, surrogate, line and paragraph separator


def create_tenant(
    connection: sa.Connection,
    name: str,
    *,
    stored_bytes_max: int | None = None,
    zero_retention: bool = False,
    operator: Operator = CLI_OPERATOR,
) -> UUID:
    """Create a tenant; without `stored_bytes_max` the default of the installation applies.

    With `zero_retention` only the ledger is kept. Raises InvalidTenantNameError, TenantExistsError.
    """
    check_name(name)
    statement = (
        insert(tenants)
        .values(
            id=new_uuid(),
            name=name,
            stored_bytes_max=stored_bytes_max,
            zero_retention=zero_retention,
        )
        .on_conflict_do_nothing(index_elements=[tenants.c.name])
        .returning(tenants.c.id)
    )
    tenant_id: UUID | None = connection.scalar(statement)
    if tenant_id is None:
        raise TenantExistsError(name=name)
    subject = public_id(TENANT, tenant_id)
    record_tenant_event(connection, operator, tenant_id, Action.TENANT_CREATED, subject)
    return tenant_id


def check_name(name: str, *, may_be_empty: bool = False) -> None:
    """Raise InvalidTenantNameError for a name that a table or a terminal cannot show."""
    is_hidden = any(category(character) in _UNSEEN for character in name)
    is_empty = not (may_be_empty or name.strip())
    if is_empty or is_hidden or len(name) > NAME_CHARS_MAX:
        raise InvalidTenantNameError


def check_bulk_hours(text: str) -> None:
    """Raise TenantHoursError if the text describes no bulk hours."""
    try:
        parse_bulk_hours(text)
    except InvalidBulkHoursError as error:
        raise TenantHoursError(f"bulk_hours: {error}") from None


def check_degraded_model(name: str) -> None:
    """Raise TenantModelError if no model can have this name. It may be registered later."""
    if not MODEL_NAME.fullmatch(name):
        raise TenantModelError


def find_tenant(connection: sa.Connection, name: str) -> UUID:
    """Return the tenant with that name. Raises TenantNotFoundError."""
    tenant_id: UUID | None = connection.scalar(
        sa.select(tenants.c.id).where(tenants.c.name == name, tenants.c.deleted_at.is_(None))
    )
    if tenant_id is None:
        raise TenantNotFoundError(name=name)
    return tenant_id


def set_zero_retention(
    connection: sa.Connection, tenant_id: UUID, *, on: bool, operator: Operator = CLI_OPERATOR
) -> None:
    """Turn zero retention of a tenant on or off, for data created from then on.

    Turning it on turns the response cache off. Turning it on again keeps its first start time.
    """
    values: dict[str, object] = {"zero_retention": on, "zero_retention_since": None}
    if on:
        since = sa.case(
            (tenants.c.zero_retention, tenants.c.zero_retention_since), else_=sa.func.now()
        )
        values |= {"zero_retention_since": since, "response_cache_ttl_s": None}
    change_tenant(connection, tenant_id, values, {"zero_retention": on}, operator)


def has_zero_retention(tenant_id: UUID | sa.ColumnElement[Any]) -> sa.ScalarSelect[bool]:
    """Return the SQL expression whether a tenant has zero retention."""
    query = sa.select(tenants.c.zero_retention).where(tenants.c.id == tenant_id)
    return query.scalar_subquery()


def stored_bytes_max(
    connection: sa.Connection, tenant_id: UUID, *, default: int, lock: bool
) -> int:
    """Return the bytes that a tenant may store.

    With `lock`, other callers with `lock` wait for the end of this transaction, so that two uploads
    cannot both use the last bytes. Readers and new jobs do not wait.
    """
    query = sa.select(tenants.c.stored_bytes_max).where(tenants.c.id == tenant_id)
    if lock:
        query = query.with_for_update(key_share=True)
    own: int | None = connection.scalar(query)
    return default if own is None else own


def change_tenant(
    connection: sa.Connection,
    tenant_id: UUID,
    values: Mapping[str, object],
    details: Details,
    operator: Operator,
) -> None:
    """Change columns of a tenant and record the audit event with `details`."""
    connection.execute(sa.update(tenants).where(tenants.c.id == tenant_id).values(**values))
    subject = public_id(TENANT, tenant_id)
    record_tenant_event(connection, operator, tenant_id, Action.TENANT_UPDATED, subject, details)


class TenantExistsError(MillraceError):
    """A tenant with this name exists already."""

    code = "tenant_exists"
    disposition = Disposition.REJECT


class TenantNotFoundError(MillraceError):
    """There is no such tenant."""

    code = "tenant_missing"
    disposition = Disposition.REJECT


class InvalidTenantNameError(MillraceError):
    """A name must have 1 to 256 visible characters and no control characters."""

    code = "tenant_refused"
    disposition = Disposition.REJECT


class TenantHoursError(MillraceError):
    """The bulk hours of the tenant are not valid."""

    code = "tenant_refused"
    disposition = Disposition.REJECT


class TenantModelError(MillraceError):
    """The name of a model must have 1 to 256 visible ASCII characters and no spaces."""

    code = "tenant_refused"
    disposition = Disposition.REJECT


class ZeroRetentionConflictError(MillraceError):
    """The tenant has zero retention, so its answers cannot be cached: only `off` is possible."""

    code = "zero_retention"
    disposition = Disposition.REJECT
