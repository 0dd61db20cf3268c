"""What can be wrong with a tenant that an operator names."""

from core.errors import Disposition, MillraceError


class TenantExistsError(MillraceError):
    """There is a tenant of that name already."""

    code = "tenant_exists"
    disposition = Disposition.REJECT


class TenantNotFoundError(MillraceError):
    """There is no such tenant."""

    code = "tenant_missing"
    disposition = Disposition.REJECT


class InvalidTenantNameError(MillraceError):
    """A tenant's name is a text that can be seen, without control characters."""

    code = "tenant_refused"
    disposition = Disposition.REJECT


class ZeroRetentionConflictError(MillraceError):
    """This tenant retains nothing, so no answer can be given again: `off` is its only choice."""

    code = "zero_retention"
    disposition = Disposition.REJECT
