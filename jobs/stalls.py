"""Which jobs stand still: something is outstanding and nothing has changed for a while."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from jobs.windows import JobLoad


@dataclass(slots=True)
class StallWatch:
    """Remembers since when each job has stood still, by this process's own clock.

    Rows alone cannot tell: a job may have waited for its window and emitted its first items just
    now. A restart only begins to watch anew.
    """

    limit_s: float
    _since: dict[UUID, tuple[int, int, float]] = field(default_factory=dict)

    def stalled(self, loads: Sequence[JobLoad], now_s: float) -> list[JobLoad]:
        """Note the jobs of this moment; return those that have stood still for the limit."""
        before, self._since = self._since, {}
        found = []
        for load in loads:
            emitted, terminal, since_s = before.get(load.job_id, (-1, -1, now_s))
            if (emitted, terminal) != (load.emitted, load.terminal) or not load.outstanding:
                since_s = now_s
            self._since[load.job_id] = (load.emitted, load.terminal, since_s)
            if now_s - since_s >= self.limit_s:
                found.append(load)
        return found

    def restart(self, job_id: UUID) -> None:
        """Give a job its full time again, after a repair."""
        self._since.pop(job_id, None)
