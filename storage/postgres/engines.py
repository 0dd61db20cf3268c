"""Engines on Postgres, and the driver's cursor for hot statements. No statement lives here."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import psycopg
import sqlalchemy
import sqlalchemy.event
import sqlalchemy.exc

from storage.postgres.settings import DatabaseSettings

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]
"""The driver's cursor; named here so that no other room imports the driver."""

_CUT: Final = (
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.TransactionTimeout,
    psycopg.errors.ReadOnlySqlTransaction,
)
"""A session of no more use: Postgres ended it because this process was frozen, or slow, in a
transaction, or the server behind it only reads, as a standby does.

Class 25 of SQLSTATE, so the driver takes them for errors of ours.
"""

_ONLY_READS: Final = ("in_hot_standby", "default_transaction_read_only")
"""What the server tells of itself, unasked, whenever it changes."""

DATABASE_UNAVAILABLE: Final[tuple[type[Exception], ...]] = (
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.TimeoutError,  # no free connection in the pool
    psycopg.OperationalError,
    *_CUT,
)
"""For `except`: the world's fault, so the same transaction may succeed later.

A lost or refused connection, a restart, a server that only reads, a deadlock, a lock or statement
timeout, a full disk.
Refused data and wrong SQL are not among them: trying those again would be a loop.
"""

# A vanished host is noticed after 10 + 3 * 5 s of silence instead of the kernel's hours.
_KEEPALIVE: Final[Mapping[str, int]] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def create_engine(settings: DatabaseSettings, *, application_name: str) -> sqlalchemy.Engine:
    """Build a pooled engine; it connects at first use and again after a lost connection."""
    engine = sqlalchemy.create_engine(
        settings.sqlalchemy_url(),
        connect_args=connect_options(settings, application_name=application_name),
        hide_parameters=True,  # an error may reach a log, and parameters are what users sent
        **_pool_options(settings),
    )
    sqlalchemy.event.listen(engine, "handle_error", _recognise_a_cut, retval=True)
    sqlalchemy.event.listen(engine, "checkout", _refuse_one_that_only_reads)
    return engine


def raw_cursor(connection: sqlalchemy.Connection) -> Cursor:
    """Return a driver cursor inside the transaction of `connection`, for `%b` parameters.

    Begins the transaction when there is none yet, so that `connection.commit()` covers what the
    cursor does. Errors come as the driver's: `DATABASE_UNAVAILABLE` names both kinds.
    """
    if not connection.in_transaction():
        connection.begin()
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection):
        raise TypeError("the engine behind this connection is not psycopg 3")
    cursor: Cursor = driver.cursor()
    return cursor


def driver_message(failure: BaseException) -> str:
    """Return the first line of what the driver said: whom it asked where, never a password."""
    cause = getattr(failure, "orig", None) or failure
    return str(cause).strip().partition("\n")[0]


def connect_options(settings: DatabaseSettings, *, application_name: str) -> dict[str, object]:
    """Return libpq's options: timeouts are set by the connection itself, before any statement."""
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
        "target_session_attrs": "read-write",  # of several hosts the primary; no standby alone
        "options": " ".join([*flags, own]).strip(),  # the operator's own options win
        **_KEEPALIVE,
    }


def _recognise_a_cut(context: sqlalchemy.engine.ExceptionContext) -> BaseException | None:
    """Return the error of a lost connection for a session of no more use; None for others."""
    cut = context.original_exception
    if not isinstance(cut, _CUT):
        return None
    context.is_disconnect = True
    return sqlalchemy.exc.OperationalError(
        context.statement, None, cut, hide_parameters=True, connection_invalidated=True
    )


def _refuse_one_that_only_reads(driver: psycopg.Connection, *_: object) -> None:
    """Let the pool connect anew, which waits for a server that takes writes."""
    if any(driver.info.parameter_status(name) == "on" for name in _ONLY_READS):
        raise sqlalchemy.exc.DisconnectionError("the server only reads")


def _pool_options(settings: DatabaseSettings) -> dict[str, Any]:
    return {
        "pool_size": settings.pool_size,
        "max_overflow": 0,  # the bound that operators sum up is exact
        "pool_timeout": settings.pool_wait_s,
        "pool_pre_ping": True,  # one round trip, so a restart of Postgres costs no transaction
        "pool_use_lifo": True,  # idle ones stay idle, and a lull leaves few to replace
        "use_native_hstore": False,  # we have none; spares a query per process
    }
