"""Which jobs stand still: something is outstanding and nothing has changed for a while."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from jobs.expansion.windows import JobLoad

_NONE: Final[Mapping[str, int]] = {}
_TURNS: Final = 2.0  # a pool's time for all that is out, and as much again
_LIMITS_MAX: Final = 60.0  # however slow a pool: what was lost must come to light
_DOUBLINGS_MAX: Final = 6
_UNSTEADY_LIMITS_MAX: Final = 10.0  # replicas that come and go for ever hide no loss


@dataclass(slots=True)
class _Still:
    """A job as it was when it last changed."""

    emitted: int
    terminal: int
    since_s: float
    repairs: int = 0  # since then


@dataclass(slots=True)
class StallWatch:
    """Remembers since when each job has stood still, by this process's own clock.

    Rows alone cannot tell: a job may have waited for its window and emitted its first items just
    now. A restart only begins to watch anew.
    """

    limit_s: float
    _still: dict[UUID, _Still] = field(default_factory=dict)

    def stalled(
        self,
        loads: Sequence[JobLoad],
        now_s: float,
        rates: Mapping[str, float] = _NONE,
        began_s: Mapping[str, float] = _NONE,
        unlisted: Mapping[str, int] = _NONE,
    ) -> list[JobLoad]:
        """Note the jobs of this moment; return those that have stood still for too long.

        That is the limit, or longer where a pool, by its rate in items per second, needs longer
        for all that is out: whoever waits for its turn has lost nothing. It counts anew from
        `began_s`, when a pool's newest replica began to work: what the last one held comes to it.
        `unlisted` are items that are out and not among `loads`, by pool.
        It doubles with each repair that changed nothing, so that slow items are not repeated as
        fast as they run.
        """
        before, self._still = self._still, {}
        out = Counter(unlisted)
        for load in loads:
            out[load.pool] += load.outstanding
        found = []
        for load in loads:
            still = before.get(load.job_id)
            changed = still is None or (still.emitted, still.terminal) != (
                load.emitted,
                load.terminal,
            )
            if still is None or changed or not load.outstanding:
                still = _Still(load.emitted, load.terminal, now_s)
            self._still[load.job_id] = still
            patience_s = _patience_s(self.limit_s, out[load.pool], rates.get(load.pool, 0.0))
            since_s = max(still.since_s, began_s.get(load.pool, 0.0))
            since_s = min(since_s, still.since_s + _UNSTEADY_LIMITS_MAX * self.limit_s)
            if now_s - since_s >= patience_s * 2**still.repairs:
                found.append(load)
        return found

    def restart(self, job_id: UUID, now_s: float) -> None:
        """Give a job its full time again, after a repair."""
        if still := self._still.get(job_id):
            still.since_s = now_s
            still.repairs = min(still.repairs + 1, _DOUBLINGS_MAX)


def _patience_s(limit_s: float, outstanding: int, items_per_s: float) -> float:
    if items_per_s <= 0:
        return limit_s
    return min(max(limit_s, _TURNS * outstanding / items_per_s), _LIMITS_MAX * limit_s)
