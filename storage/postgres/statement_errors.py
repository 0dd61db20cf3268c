"""What Postgres refuses for its own sake: trying it again would be a loop."""

from typing import Final

import psycopg
import sqlalchemy

ROW_EXISTS: Final[tuple[type[Exception], ...]] = (psycopg.errors.UniqueViolation,)
"""For `except`: a row of that key is there already. Also one of `DATA_REJECTED`."""

DATA_REJECTED: Final[tuple[type[Exception], ...]] = (
    psycopg.DataError,
    psycopg.IntegrityError,
)
"""For `except` around a driver's cursor: a value that no column can hold, a broken constraint."""


def missing_privilege(error: sqlalchemy.exc.DBAPIError) -> str | None:
    """Return what Postgres says of a right that the user lacks; None for any other error."""
    cause = error.orig
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return cause.diag.message_primary
    return None


def is_lock_timeout(error: sqlalchemy.exc.DBAPIError) -> bool:
    """Whether Postgres gave up the wait for a lock; nothing was done then."""
    return isinstance(error.orig, psycopg.errors.LockNotAvailable)
