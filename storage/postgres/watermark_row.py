"""The watermark in the database, by which roles detect lost commits (`core.commit_watermark`)."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.commit_watermark import (
    CHECK_INTERVAL_S,
    CommitsLostError,
    CommitWatch,
    CommitWatermark,
)
from storage.postgres.engines import autocommit
from storage.postgres.metadata import Timestamp, metadata

commit_watermark: Final = sa.Table(
    "commit_watermark",
    metadata,
    sa.Column[int](
        "id",
        sa.SmallInteger,
        primary_key=True,
        autoincrement=False,
        comment="1: there is one row",
    ),
    sa.Column[object]("installation_id", sa.Uuid, nullable=False, comment="random"),
    sa.Column[int](
        "number", sa.BigInteger, nullable=False, comment="written to the log after the commit"
    ),
    sa.Column[datetime]("advanced_at", Timestamp, nullable=False, server_default=sa.func.now()),
    sa.Column[int](
        "lost_above",
        sa.BigInteger,
        comment="commits were lost: the highest number known; millrace recover clears it",
    ),
    sa.CheckConstraint("id = 1", name="one_row"),
    comment="Incremented about once a second; a lower number than before means lost commits",
)

_ROW: Final = commit_watermark.c
_INTERVAL: Final = timedelta(seconds=0.9 * CHECK_INTERVAL_S)
_COLUMNS: Final = (_ROW.installation_id, _ROW.number, _ROW.lost_above)


class DatabaseWatermark:
    """The watermark in its table: a `core.commit_watermark.WatermarkRow`."""

    def __init__(self, connection: sa.Connection) -> None:
        """Use `connection`, whose transaction the caller ends, if there is one."""
        self._connection = connection

    def read(self) -> CommitWatermark | None:
        """See `WatermarkRow`."""
        row = self._connection.execute(sa.select(*_COLUMNS)).one_or_none()
        return None if row is None else CommitWatermark(*row)

    def confirm_loss(self, installation_id: UUID, known: int) -> bool:
        """See `WatermarkRow`. An update runs on the primary, wherever a pooler sends reads."""
        is_behind = sa.and_(_ROW.installation_id == installation_id, _ROW.number < known)
        statement = sa.update(commit_watermark).where(is_behind).values(lost_above=known)
        return self._connection.execute(statement).rowcount > 0

    def advance(self, at_least: int) -> CommitWatermark | None:
        """Increment the number, and return it, if no process has done so in the last second.

        A number below `at_least`, the highest one known, is left as it is: to pass that would hide
        lost commits.
        """
        now = sa.func.now()
        row = self._connection.execute(
            sa.update(commit_watermark)
            .where(
                _ROW.number >= at_least,
                _ROW.lost_above.is_(None),
                sa.not_(_ROW.advanced_at.between(now - _INTERVAL, now)),
            )
            .values(number=_ROW.number + 1, advanced_at=now)
            .returning(*_COLUMNS)
        ).one_or_none()
        return None if row is None else CommitWatermark(*row)

    def raise_above(self, log: Mapping[UUID, int]) -> CommitWatermark | None:
        """Set the number above every known one and end the stop of the roles."""
        found = self.read()
        if found is None:
            return None
        known = max(found.number, found.lost_above or 0, log.get(found.installation_id, 0))
        statement = sa.update(commit_watermark).values(
            number=known + 1, advanced_at=sa.func.now(), lost_above=None
        )
        self._connection.execute(statement)
        return CommitWatermark(found.installation_id, known + 1)


def raise_if_commits_lost(
    engine: sa.Engine, watch: CommitWatch, log: Mapping[UUID, int] | None = None
) -> None:
    """Check the watermark once; without `log`, against what `watch` has read of the database.

    Raises CommitsLostError, and one of DATABASE_UNAVAILABLE.
    """
    with autocommit(engine) as connection:
        lost = watch.find_loss(DatabaseWatermark(connection), log or {})
    if lost is not None:
        raise CommitsLostError(number=lost.number, known=lost.lost_above)
