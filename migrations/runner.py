"""Bring a database to the newest revision; safe to call from several processes at once."""

import time
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from core.errors import MillraceError
from storage.postgres.settings import DatabaseSettings
from storage.postgres.statement_errors import is_lock_timeout, missing_privilege

LOCK_TIMEOUT_S: Final = 1
"""Longest wait of a revision for a lock: every later query of its table queues behind it."""

_TRIES: Final = 30
_PAUSE_S: Final = 2.0
"""Between tries, so that those who queued behind a revision come first."""

_ADVISORY_LOCK: Final = 0x6D696C6C  # one upgrade at a time in one database
_TURN_S_MAX: Final = 1800.0
"""How long an upgrade waits for another, and after which none begins again."""
_TURN_ASK_S: Final = 0.2


class UpgradeInProgressError(MillraceError):
    """Another upgrade of this database takes too long. See what it waits for."""

    code = "upgrade_runs"


class PrivilegeMissingError(MillraceError):
    """The user of the database lacks a right that a revision needs."""

    code = "right_missing"


def upgrade(url: str) -> None:
    """Apply every revision that the database at `url` lacks.

    Waits for another upgrade, and tries again while a lock is taken. Raises ValidationError,
    PrivilegeMissingError, UpgradeInProgressError; what was applied before a refusal stays.
    """
    settings = DatabaseSettings.model_validate({"url": url})
    primary = {"target_session_attrs": "read-write"}  # of several hosts; no standby alone
    engine = sa.create_engine(
        settings.sqlalchemy_url(), connect_args=primary, poolclass=sa.NullPool
    )
    try:
        with engine.connect() as connection:
            _take_turn(connection)
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


def _take_turn(connection: sa.Connection) -> None:
    """Wait for the advisory lock. Raises UpgradeInProgressError.

    It is asked for again and again: who waits inside a statement is an older transaction that the
    other's build of an index waits for.
    """
    give_up_at = time.monotonic() + _TURN_S_MAX
    ask = sa.select(sa.func.pg_try_advisory_lock(_ADVISORY_LOCK))
    while not connection.scalar(ask):
        connection.commit()
        if time.monotonic() >= give_up_at:
            raise UpgradeInProgressError
        time.sleep(_TURN_ASK_S)
    connection.commit()


def _apply(connection: sa.Connection) -> None:
    """Apply what is missing; a revision that did not get its lock goes again from its begin."""
    give_up_at = time.monotonic() + _TURN_S_MAX
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
    """Return Alembic's configuration, bound to `connection`."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config
