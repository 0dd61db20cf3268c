"""Detects commits that Postgres has lost, by a watermark in the database and on the log.

Intake increments a number in Postgres about once a second and writes it to the log only after the
commit. So a number that was read before, from the log or from the database, is never higher than
what the database holds now, unless the database lost commits: a failover to an asynchronous
standby, or a restore.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from core.clock import Clock
from core.errors import MillraceError

CHECK_INTERVAL_S: Final = 1.0
"""Time between two checks, and between two increments of the watermark."""

GRACE_S: Final = 3.0
"""How long the database must be behind: a role may still be connected to the former primary."""


class CommitsLostError(MillraceError):
    """Postgres lost commits: stop all roles, run `millrace recover`, then start the roles again."""

    code = "commits_lost"


@dataclass(frozen=True, slots=True)
class CommitWatermark:
    """The watermark in the database."""

    installation_id: UUID  # random; a standby and a backup keep it, another installation differs
    number: int
    lost_above: int | None = None  # set when commits were lost: the highest number known then


class WatermarkRow(Protocol):
    """The watermark of the database; each method is one statement."""

    def read(self) -> CommitWatermark | None:
        """Return the watermark, None without one."""
        ...

    def confirm_loss(self, installation_id: UUID, known: int) -> bool:
        """Record that commits were lost if the number is below `known`; return whether it is."""
        ...


class CommitWatch:
    """Compares the watermark of the database with the highest one known. Used by one thread.

    A loss counts only when the database is behind for `GRACE_S` and then accepts a write that
    depends on it: a pooler may send reads to a standby that lags.
    """

    def __init__(self, clock: Clock) -> None:
        """Know no watermark."""
        self._clock = clock
        self._installation_id: UUID | None = None
        self.highest = 0
        """The highest number of the database's installation that is known to be committed."""

        self._behind_since_s: float | None = None

    def find_loss(self, row: WatermarkRow, log: Mapping[UUID, int]) -> CommitWatermark | None:
        """Return the watermark of a database that lost commits, None if none are known to be lost.

        `log` is read before the row: the highest number on the log for each installation.
        """
        known = dict(log)
        found = row.read()
        if found is None:
            return None
        if found.lost_above is not None:
            return found
        if found.installation_id != self._installation_id:
            self._installation_id, self.highest, self._behind_since_s = (
                found.installation_id,
                0,
                None,
            )
        self.highest = max(self.highest, known.get(found.installation_id, 0), found.number)
        if found.number == self.highest:
            self._behind_since_s = None
            return None
        now_s = self._clock.monotonic_s()
        if self._behind_since_s is None:
            self._behind_since_s = now_s
        if now_s - self._behind_since_s < GRACE_S:
            return None
        self._behind_since_s = None
        if not row.confirm_loss(found.installation_id, self.highest):
            return None
        return CommitWatermark(found.installation_id, found.number, self.highest)
