"""Upgrades a database to the newest revision; safe to run in several processes at once."""

import time
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from core.errors import MillraceError
from storage.postgres.engines import is_lock_timeout, missing_privilege
from storage.postgres.settings import DatabaseSettings

LOCK_TIMEOUT_S: Final = 1
"""Longest wait of a revision for a lock: later queries of its table queue behind it."""

_TRIES: Final = 30
_PAUSE_S: Final = 2.0
"""Pause between tries, so that queries that queued behind a revision can run."""

_ADVISORY_LOCK: Final = 0x6D696C6C  # one upgrade at a time in one database
_WAIT_S_MAX: Final = 1800.0
"""How long an upgrade waits for another one, and after which it starts no retry."""
_LOCK_RETRY_S: Final = 0.2


class UpgradeInProgressError(MillraceError):
    """Another upgrade of this database takes too long. Check which lock it waits for."""

    code = "upgrade_runs"


class PrivilegeMissingError(MillraceError):
    """The database user lacks a privilege that a revision needs."""

    code = "right_missing"


def upgrade(url: str) -> None:
    """Apply every revision that the database at `url` lacks.

    Waits for another upgrade, and retries after lock timeouts. Raises ValidationError,
    PrivilegeMissingError, UpgradeInProgressError; revisions applied before stay applied.
    """
    settings = DatabaseSettings.model_validate({"url": url})
    primary = {"target_session_attrs": "read-write"}  # the primary of several hosts
    engine = sa.create_engine(
        settings.sqlalchemy_url(), connect_args=primary, poolclass=sa.NullPool
    )
    try:
        with engine.connect() as connection:
            _acquire_upgrade_lock(connection)
            connection.execute(sa.text(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'"))
            connection.commit()
            _apply(connection)
            connection.commit()
    except sa.exc.ProgrammingError as error:
        right = missing_privilege(error)
        if right is None:
            raise
        raise PrivilegeMissingError(right) from error
    finally:
        engine.dispose()


def _acquire_upgrade_lock(connection: sa.Connection) -> None:
    """Poll for the advisory lock. Raises UpgradeInProgressError.

    A blocking wait would be an open transaction, for which the other upgrade's index build waits.
    """
    give_up_at = time.monotonic() + _WAIT_S_MAX
    try_lock = sa.select(sa.func.pg_try_advisory_lock(_ADVISORY_LOCK))
    while not connection.scalar(try_lock):
        connection.commit()
        if time.monotonic() >= give_up_at:
            raise UpgradeInProgressError
        time.sleep(_LOCK_RETRY_S)
    connection.commit()


def _apply(connection: sa.Connection) -> None:
    """Apply missing revisions; repeat a revision whose lock timed out from its start."""
    give_up_at = time.monotonic() + _WAIT_S_MAX
    for tries_left in reversed(range(_TRIES)):
        try:
            command.upgrade(alembic_config(connection), "head")
        except sa.exc.OperationalError as error:
            connection.rollback()
            is_late = time.monotonic() >= give_up_at
            if not is_lock_timeout(error) or not tries_left or is_late:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def alembic_config(connection: sa.Connection) -> Config:
    """Return Alembic's configuration for `connection`."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config
