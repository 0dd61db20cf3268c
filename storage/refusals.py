"""Rows that Postgres refuses for their own sake: trying them again would be a loop."""

from typing import Final

import psycopg

ROW_EXISTS: Final[tuple[type[Exception], ...]] = (psycopg.errors.UniqueViolation,)
"""For `except`: a row of that key is there already. Also one of `DATA_REFUSED`."""

DATA_REFUSED: Final[tuple[type[Exception], ...]] = (
    psycopg.DataError,
    psycopg.IntegrityError,
)
"""For `except` around a driver's cursor: a value that no column can hold, a broken constraint."""
