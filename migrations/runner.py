"""Bring a database to the newest revision; safe to call from several processes at once."""

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from core.errors import MillraceError
from storage.refusals import lacking_right
from storage.settings import DatabaseSettings

LOCK_TIMEOUT_S = 10
"""A revision that cannot get its lock fails rather than block every writer behind it."""

_ADVISORY_LOCK = 0x6D696C6C  # one upgrade at a time in one database


class RightMissingError(MillraceError):
    """The user of the database lacks a right that a revision needs."""

    code = "right_missing"


def upgrade(url: str) -> None:
    """Apply every revision that the database at `url` lacks.

    Raises ValidationError, RightMissingError; what was applied before a refusal stays.
    """
    settings = DatabaseSettings.model_validate({"url": url})
    engine = sa.create_engine(settings.sqlalchemy_url(), poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            connection.execute(sa.text(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'"))
            connection.execute(
                sa.text("SELECT pg_advisory_lock(:key)").bindparams(key=_ADVISORY_LOCK)
            )
            connection.commit()
            command.upgrade(alembic_config(connection), "head")
            connection.commit()
    except sa.exc.ProgrammingError as error:
        right = lacking_right(error)
        if right is None:
            raise
        raise RightMissingError(right) from error
    finally:
        engine.dispose()


def alembic_config(connection: sa.Connection) -> Config:
    """Return Alembic's configuration, bound to `connection`."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config
