"""Errors of operations on tenants."""

from core.errors import Disposition, MillraceError


class TenantExistsError(MillraceError):
    """A tenant with this name exists already."""

    code = "tenant_exists"
    disposition = Disposition.REJECT


class TenantNotFoundError(MillraceError):
    """There is no such tenant."""

    code = "tenant_missing"
    disposition = Disposition.REJECT


class InvalidTenantNameError(MillraceError):
    """A tenant's name must have visible characters and no control characters."""

    code = "tenant_refused"
    disposition = Disposition.REJECT


class ZeroRetentionConflictError(MillraceError):
    """The tenant has zero retention, so its answers cannot be cached: only `off` is possible."""

    code = "zero_retention"
    disposition = Disposition.REJECT
