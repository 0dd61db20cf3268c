"""Classifies statements that Postgres rejects: most would fail again on a retry."""

from typing import Final

import psycopg
import sqlalchemy

ROW_EXISTS: Final[tuple[type[Exception], ...]] = (psycopg.errors.UniqueViolation,)
"""For `except`: a row with that key exists. Also part of `DATA_REJECTED`."""

DATA_REJECTED: Final[tuple[type[Exception], ...]] = (
    psycopg.DataError,
    psycopg.IntegrityError,
)
"""For `except` around a driver's cursor: an invalid value or a violated constraint."""


def missing_privilege(error: sqlalchemy.exc.DBAPIError) -> str | None:
    """Return Postgres's message about a missing privilege; None for any other error."""
    cause = error.orig
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return cause.diag.message_primary
    return None


def is_lock_timeout(error: sqlalchemy.exc.DBAPIError) -> bool:
    """Whether the wait for a lock timed out; the statement then had no effect."""
    return isinstance(error.orig, psycopg.errors.LockNotAvailable)
