"""Shadow tables: an empty copy of every table in a schema of its own, and an engine for it.

Connections of that engine are opened with this schema alone on their search path, so that they
cannot write to a live table, not even after a reconnection.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from pydantic import SecretStr

from core.errors import Disposition, MillraceError
from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings

SCHEMA: Final = "millrace_rebuild"
LONG_TIMEOUT: Final = sa.text("SET LOCAL statement_timeout = '600s'")
"""A statement may touch all rows of a job, up to a million."""

_ADVISORY_LOCK: Final = 0x72656275  # one rebuild at a time in one database
_NAME: Final = "millrace-rebuild"
_TABLES: Final = sa.text(
    "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
    "AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'alembic_version'"
)
_IDS: Final = sa.bindparam("ids", type_=sa.ARRAY(sa.Uuid))
_COPY: Final = (
    sa.text(f"INSERT INTO {SCHEMA}.jobs SELECT * FROM jobs WHERE id = ANY(:ids)").bindparams(_IDS),  # noqa: S608
    sa.text(
        f"INSERT INTO {SCHEMA}.job_counters (job_id) "  # noqa: S608
        "SELECT id FROM jobs WHERE id = ANY(:ids) AND deleted_at IS NULL"
    ).bindparams(_IDS),
    sa.text(  # which items are copies follows from the input files, not from the log
        f"INSERT INTO {SCHEMA}.item_copies "  # noqa: S608
        "SELECT * FROM item_copies WHERE job_id = ANY(:ids)"
    ).bindparams(_IDS),
)
_REOPEN: Final = sa.text(
    f"UPDATE {SCHEMA}.jobs SET state = 'in_progress', settled_at = NULL, finalizing_at = NULL"  # noqa: S608
)


class RebuildRunsError(MillraceError):
    """Another rebuild is running on this database. Wait for its end."""

    code = "rebuild_runs"
    disposition = Disposition.REJECT


@contextmanager
def shadow_engine(settings: DatabaseSettings, live: sa.Engine) -> Iterator[sa.Engine]:
    """Yield an engine on new shadow tables, which are dropped at the end of the block.

    Shadow tables that a crash left are dropped first. Raises RebuildRunsError.
    """
    # The lock is held as long as this connection.
    with live.connect() as guard:
        taken = guard.scalar(sa.select(sa.func.pg_try_advisory_lock(_ADVISORY_LOCK)))
        guard.commit()
        if not taken:
            raise RebuildRunsError
        try:
            _recreate(live)
            engine = create_engine(_on_shadow(settings), application_name=_NAME)
            try:
                yield engine
            finally:
                engine.dispose()
                _drop(live)
        finally:
            guard.execute(sa.select(sa.func.pg_advisory_unlock(_ADVISORY_LOCK)))
            guard.commit()


def copy_jobs_to_shadow(live: sa.Engine, job_ids: Sequence[UUID]) -> None:
    """Fill the shadow tables with the jobs in their state before the first result."""
    with live.begin() as connection:
        connection.execute(LONG_TIMEOUT)
        for name in connection.scalars(_TABLES).all():
            connection.execute(sa.text(f"TRUNCATE {SCHEMA}.{name}"))
        for text in _COPY:
            connection.execute(text, {"ids": list(job_ids)})
        connection.execute(_REOPEN)


def statement(text: str) -> sa.TextClause:
    """Return a statement about the job that `:job` binds."""
    return sa.text(text).bindparams(sa.bindparam("job", type_=sa.Uuid))


def _recreate(live: sa.Engine) -> None:
    _drop(live)
    with live.begin() as connection:
        connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
        for name in connection.scalars(_TABLES).all():
            # Without triggers and foreign keys: jobs are inserted in a state they forbid.
            connection.execute(
                sa.text(
                    f"CREATE UNLOGGED TABLE {SCHEMA}.{name} (LIKE {name} "
                    "INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING INDEXES)"
                )
            )


def _drop(live: sa.Engine) -> None:
    with live.begin() as connection:
        connection.execute(sa.text(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))


def _on_shadow(settings: DatabaseSettings) -> DatabaseSettings:
    url = settings.sqlalchemy_url()
    options = url.query.get("options", "")
    own = " ".join(options) if isinstance(options, tuple) else options
    path = f"{own} -c search_path={SCHEMA}".strip()
    changed = url.update_query_dict({"options": path}).render_as_string(hide_password=False)
    return settings.model_copy(update={"url": SecretStr(changed)})
