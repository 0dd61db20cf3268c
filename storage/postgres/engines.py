"""Creates SQLAlchemy engines for Postgres and driver cursors, and classifies their errors."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import psycopg
import sqlalchemy
import sqlalchemy.event
import sqlalchemy.exc

from storage.postgres.settings import DatabaseSettings

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]
"""The driver's cursor; defined here so that no other package imports the driver."""

_LOST_SESSION: Final = (
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
    psycopg.errors.ReadOnlySqlTransaction,
)
"""Errors that end a session: its transaction was idle or open for too long, because this process
was paused or slow, or the server is read-only, for example a standby.

SQLSTATE class 25, which the driver treats as programming errors.
"""

_READ_ONLY_STATUS: Final = ("in_hot_standby", "default_transaction_read_only")
"""Parameters whose changes the server reports unasked."""

DATABASE_UNAVAILABLE: Final[tuple[type[Exception], ...]] = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.TimeoutError,  # no free connection in the pool
    psycopg.OperationalError,
    *_LOST_SESSION,
)
"""For `except`: temporary errors, after which the same transaction may succeed.

A lost or refused connection, a restart, a read-only server, a deadlock, a lock or statement
timeout, a full disk. Not rejected data or wrong SQL, where a retry would be an endless loop.
"""

ROW_EXISTS: Final[tuple[type[Exception], ...]] = (psycopg.errors.UniqueViolation,)
"""For `except`: a row with that key exists. Also part of `DATA_REJECTED`."""

DATA_REJECTED: Final[tuple[type[Exception], ...]] = (psycopg.DataError, psycopg.IntegrityError)
"""For `except` around a driver's cursor: an invalid value or a violated constraint."""

TRUSTED_S: Final = 0.1
"""A connection that was returned to the pool less than this ago is not tested, in seconds.

A test is one round trip before each transaction, a quarter of what most of them take. A restart
of Postgres takes longer (ADR 114).
"""

_USED_S: Final = "used_s"

# A vanished host is detected after 10 + 3 * 5 s, not after the kernel's hours.
_KEEPALIVE: Final[Mapping[str, int]] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def create_engine(settings: DatabaseSettings, *, application_name: str) -> sqlalchemy.Engine:
    """Return a pooled engine; it connects at first use, and again after a lost connection."""
    engine = sqlalchemy.create_engine(
        settings.sqlalchemy_url(),
        connect_args=connect_options(settings, application_name=application_name),
        hide_parameters=True,  # an error may be logged, and parameters hold users' data
        **_pool_options(settings),
    )
    sqlalchemy.event.listen(engine, "handle_error", _translate_lost_session, retval=True)
    sqlalchemy.event.listen(engine, "checkout", _check_connection)
    sqlalchemy.event.listen(engine, "connect", _note_use)
    sqlalchemy.event.listen(engine, "checkin", _note_use)
    return engine


@contextmanager
def autocommit(engine: sqlalchemy.Engine) -> Iterator[sqlalchemy.Connection]:
    """Yield a connection whose statements commit one by one.

    A read of one statement then takes one round trip, not three (`BEGIN`, statement, `COMMIT`).
    """
    with engine.connect() as connection:
        yield connection.execution_options(isolation_level="AUTOCOMMIT")


def raw_cursor(connection: sqlalchemy.Connection) -> Cursor:
    """Return a driver cursor inside the transaction of `connection`, for `%b` parameters.

    Begins the transaction if there is none, so that `connection.commit()` includes the cursor's
    work. Raises the driver's errors; `DATABASE_UNAVAILABLE` holds both kinds.
    """
    if not connection.in_transaction():
        connection.begin()
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        raise TypeError("the engine behind this connection is not psycopg 3")
    cursor: Cursor = driver.cursor()
    return cursor


def driver_message(failure: BaseException) -> str:
    """Return the first line of the driver's message: user and host, never a password."""
    cause = getattr(failure, "orig", None) or failure
    return str(cause).strip().partition("\n")[0]


def connect_options(settings: DatabaseSettings, *, application_name: str) -> dict[str, object]:
    """Return libpq's options, which set the timeouts before any statement."""
    limits = {
        "statement_timeout": settings.statement_timeout_s,
        "lock_timeout": settings.lock_timeout_s,
        "idle_in_transaction_session_timeout": settings.idle_transaction_timeout_s,
    }
    # Rounded up: 0 ms would mean no limit at all.
    flags = [f"-c {name}={max(1, round(limit_s * 1000))}" for name, limit_s in limits.items()]
    given = settings.sqlalchemy_url().query.get("options", "")
    own = " ".join(given) if isinstance(given, tuple) else given
    return {
        "application_name": application_name,
        "connect_timeout": settings.connect_timeout_s,
        "target_session_attrs": "read-write",  # the primary of several hosts; never a standby
        "options": " ".join([*flags, own]).strip(),  # the operator's own options take precedence
        **_KEEPALIVE,
    }


def _translate_lost_session(context: sqlalchemy.engine.ExceptionContext) -> BaseException | None:
    """Return a lost-connection error for errors that end a session; None for others."""
    error = context.original_exception
    if not isinstance(error, _LOST_SESSION):
        return None
    context.is_disconnect = True
    return sqlalchemy.exc.OperationalError(
        context.statement, None, error, hide_parameters=True, connection_invalidated=True
    )


def _note_use(_driver: object, record: sqlalchemy.pool.ConnectionPoolEntry) -> None:
    record.info[_USED_S] = time.monotonic()


def _check_connection(
    driver: psycopg.Connection, record: sqlalchemy.pool.ConnectionPoolEntry, _proxy: object
) -> None:
    """Make the pool reconnect if the connection is lost, or its server rejects writes.

    A restart of Postgres then fails no transaction of an idle pool, and the pool waits for a server
    that accepts writes.
    """
    if any(driver.info.parameter_status(name) == "on" for name in _READ_ONLY_STATUS):
        raise sqlalchemy.exc.DisconnectionError("the server is read-only")
    if time.monotonic() - record.info[_USED_S] > TRUSTED_S:
        try:
            driver.autocommit = True
            driver.execute("")
            driver.autocommit = False
        except psycopg.Error as lost:  # other connections of the pool are lost, too
            raise sqlalchemy.exc.InvalidatePoolError("the connection is lost") from lost


def _pool_options(settings: DatabaseSettings) -> dict[str, Any]:
    return {
        "pool_size": settings.pool_size,
        "max_overflow": 0,  # `pool_size` is an exact bound, which operators sum up
        "pool_timeout": settings.pool_wait_s,
        "pool_use_lifo": True,  # idle connections stay idle, and can be closed
        "use_native_hstore": False,  # not used; saves a query per process
    }


def missing_privilege(error: sqlalchemy.exc.DBAPIError) -> str | None:
    """Return Postgres's message about a missing privilege; None for any other error."""
    cause = error.orig
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return cause.diag.message_primary
    return None


def is_lock_timeout(error: sqlalchemy.exc.DBAPIError) -> bool:
    """Whether the wait for a lock timed out; the statement then had no effect."""
    return isinstance(error.orig, psycopg.errors.LockNotAvailable)


def is_partition_missing(error: Exception) -> bool:
    """Whether a row belongs into a partition that does not exist, or no longer."""
    return isinstance(error, psycopg.errors.CheckViolation) and error.diag.constraint_name is None
