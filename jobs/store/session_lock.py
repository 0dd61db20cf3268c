"""An advisory lock of Postgres that outlives transactions, of one process at a time."""

from contextlib import suppress
from typing import Final

import sqlalchemy as sa

from jobs.store.transaction_keepalive import IDLE_S_MAX
from storage.postgres.engines import DATABASE_UNAVAILABLE

_LIMIT_IDLE_TIME: Final = sa.text(f"SET idle_session_timeout = '{IDLE_S_MAX}s'")
_RESET_IDLE_TIME: Final = sa.text("RESET idle_session_timeout")
_LOCK: Final = sa.text("SELECT pg_try_advisory_lock(:key)")
_UNLOCK: Final = sa.text("SELECT pg_advisory_unlock(:key)")
_KEEPALIVE: Final = sa.text("SELECT 1")


class SessionLock:
    """Held by a session of its own, which Postgres ends when its process freezes for a minute."""

    def __init__(self, engine: sa.Engine, key: int) -> None:
        """Connect when the lock is acquired."""
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._key = key
        self._session: sa.Connection | None = None

    def acquire(self) -> bool:
        """Return whether this process has the lock, now or already.

        Call it more often than once in `IDLE_S_MAX` while it is held. Raises one of
        DATABASE_UNAVAILABLE; after a lost session the caller must `abandon` the lock.
        """
        if self._session is not None:
            self._session.execute(_KEEPALIVE)
            return True
        session = self._engine.connect()
        try:
            if session.scalar(_LOCK, {"key": self._key}):
                session.execute(_LIMIT_IDLE_TIME)
                self._session = session
                return True
        finally:
            if self._session is None:
                session.close()
        return False

    def release(self) -> None:
        """Give the lock back. Raises one of DATABASE_UNAVAILABLE."""
        if self._session is not None:
            self._session.execute(_RESET_IDLE_TIME)
            self._session.execute(_UNLOCK, {"key": self._key})
            self._session.close()
            self._session = None

    def abandon(self) -> None:
        """End the session and with it the lock, whatever its state."""
        if self._session is not None:
            with suppress(*DATABASE_UNAVAILABLE):
                self._session.invalidate()
                self._session.close()
            self._session = None
