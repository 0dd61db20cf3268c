"""Bulk work, uploads and refused calls by pool, and the load of roles, from `backlog`."""

import math
from collections.abc import Iterable
from typing import Final

from autoscaler.metrics import DROPPED
from autoscaler.policy.signals import BULK_BUCKETS_MAX, STALE_S, BulkBucket
from autoscaler.signals.amounts import amount, is_time
from topics.records.scaling import Backlog, BacklogBucket, RoleLoad, WakeRequest

BACKLOG_STALE_S: Final = 10.0
"""Age from which a snapshot is stale: a large one takes seconds to query."""

WAKE_S: Final = 3.0
"""Time for which a wake request counts: the api repeats it each second."""

_DROPPED_S: Final = STALE_S + 1  # age of an input that is there and was not read
_LOAD_S: Final = 10.0
_KEYS_MAX: Final = 10_000
_SILENT_S: Final = 300.0  # intake repeats what has no work each 30 s


class BacklogTable:
    """What intakes and api processes published last. For one thread."""

    def __init__(self) -> None:
        """Start without records."""
        self._backlogs: dict[str, tuple[Backlog, float]] = {}  # by pool; with its arrival
        self._newest: tuple[float, float] | None = None  # snapshot of any pool, and its arrival
        self._refused: dict[str, float] = {}  # pools whose last snapshot was dropped, and when
        self._wakes: dict[tuple[str, str], tuple[WakeRequest, float]] = {}  # by pool and api
        self._wakes_checked_s = self._silent_checked_s = -math.inf
        self._calls: dict[str, int] = {}
        self._loads: dict[tuple[str, str], tuple[RoleLoad, float]] = {}

    @property
    def pools(self) -> Iterable[str]:
        """The pools with records."""
        return self._backlogs.keys() | self._woken

    @property
    def busy_pools(self) -> set[str]:
        """The pools with bulk work, uploads or calls."""
        return {pool for pool, (one, _) in self._backlogs.items() if _has_work(one)} | self._woken

    @property
    def _woken(self) -> set[str]:
        return {pool for pool, _ in self._wakes} | self._calls.keys()

    def record_backlog(self, backlog: Backlog, now_s: float) -> None:
        """Apply a snapshot that arrived at `now_s`, if it is the newest of its pool."""
        if not is_time(backlog.at_s, now_s, "backlog.at_s"):
            if len(self._refused) >= _KEYS_MAX:
                self._forget_silent(now_s)
            if len(self._refused) < _KEYS_MAX:
                self._refused[backlog.pool] = now_s
            return
        known = self._backlogs.get(backlog.pool)
        # After a failover of the database its time may be lower: then the higher one falls silent.
        if known and backlog.at_s <= known[0].at_s and now_s - known[1] <= STALE_S:
            return
        if known is None and len(self._backlogs) >= _KEYS_MAX:
            self._forget_silent(now_s)
        if known is None and len(self._backlogs) >= _KEYS_MAX:
            DROPPED.labels("backlogs").inc()
            return
        self._backlogs[backlog.pool] = backlog, now_s
        self._refused.pop(backlog.pool, None)
        newest = self._newest
        if newest is None or backlog.at_s > newest[0] or now_s - newest[1] > STALE_S:
            self._newest = backlog.at_s, now_s

    def record_wake(self, wake: WakeRequest, now_s: float) -> None:
        """Apply a wake request that arrived at `now_s`."""
        if not is_time(wake.at_s, now_s, "wake.at_s"):
            return
        if amount(wake.calls, "calls") is None or amount(wake.uploads, "uploads") is None:
            return
        self._forget_wakes(now_s)
        key = wake.pool, wake.api_id
        if key not in self._wakes and len(self._wakes) >= _KEYS_MAX:
            DROPPED.labels("wakes").inc()
            return
        self._wakes[key] = wake, now_s
        if wake.calls and (wake.pool in self._calls or len(self._calls) < _KEYS_MAX):
            self._calls[wake.pool] = self._calls.get(wake.pool, 0) + wake.calls

    def record_load(self, load: RoleLoad, now_s: float) -> None:
        """Apply how busy a process is."""
        numbers = (load.work_per_s, load.waiting, load.busy, load.loop_lag_s)
        if any(amount(number, "load") is None for number in numbers):
            return
        self._loads[load.role, load.process_id] = load, now_s
        if len(self._loads) > _KEYS_MAX:
            del self._loads[next(iter(self._loads))]

    def loads(self, role: str, now_s: float) -> list[tuple[RoleLoad, float]]:
        """Return load and age of each process of a role that was heard in the last 10 s."""
        return [
            (load, max(0.0, now_s - heard_s))
            for (name, _), (load, heard_s) in self._loads.items()
            if name == role and now_s - heard_s <= _LOAD_S
        ]

    def take_calls(self, pool: str) -> int:
        """Return the calls of wake requests since the last call of this method."""
        return self._calls.pop(pool, 0)

    def forget_calls(self) -> None:
        """Discard the calls that were not taken."""
        self._calls.clear()

    def uploads(self, pool: str, now_s: float) -> int:
        """Return the files that are uploaded or validated for a pool."""
        self._forget_wakes(now_s)
        current = [
            wake.uploads
            for (of, _), (wake, heard_s) in self._wakes.items()
            if of == pool and now_s - heard_s <= WAKE_S
        ]
        validating = self._backlogs[pool][0].validating if pool in self._backlogs else 0
        if amount(validating, "validating") is None or self._is_over(pool, now_s):
            validating = 0
        return sum(current) + validating

    def buckets(self, pool: str, now_s: float) -> tuple[tuple[BulkBucket, ...], float | None]:
        """Return the bulk backlog of a pool, and the earliest deadline of its jobs."""
        if pool not in self._backlogs or self._is_over(pool, now_s):
            return (), None
        backlog = self._backlogs[pool][0]
        sound = [one for one in backlog.buckets[:BULK_BUCKETS_MAX] if _is_sound(one)]
        found = tuple(
            BulkBucket(
                deadline_s=one.deadline_s,
                endpoint=one.endpoint,
                prompt_tokens=one.prompt_tokens,
                output_tokens=one.output_tokens,
            )
            for one in sound
        )
        deadline_s = amount(backlog.next_deadline_s, "next_deadline_s")
        return found, deadline_s or None

    def estimates(self, pool: str) -> dict[str, float]:
        """Return the expected output tokens of an item, by endpoint."""
        sums: dict[str, tuple[float, int]] = {}
        for one in self._backlogs[pool][0].buckets if pool in self._backlogs else ():
            if _is_sound(one) and one.items > 0:
                tokens, items = sums.get(one.endpoint, (0.0, 0))
                sums[one.endpoint] = tokens + one.output_tokens, items + one.items
        return {name: tokens / items for name, (tokens, items) in sums.items() if tokens > 0}

    def age_s(self, pool: str, now_s: float, *, had_work: bool = False) -> float:
        """Return the age by which the input is stale from `STALE_S`, as the rules have it.

        A pool that has no bulk work is not published, so its silence is not stale, unless it
        `had_work` and no intake is heard, or a snapshot or a bucket of it was dropped.
        """
        if now_s - self._refused.get(pool, -math.inf) <= BACKLOG_STALE_S:
            return _DROPPED_S
        if pool not in self._backlogs:
            is_heard = self._newest is not None and now_s - self._newest[1] <= STALE_S
            return _DROPPED_S if had_work and not is_heard else 0.0
        if self._is_over(pool, now_s):
            return 0.0
        if not all(map(_is_sound, self._backlogs[pool][0].buckets[:BULK_BUCKETS_MAX])):
            return _DROPPED_S
        backlog, heard_s = self._backlogs[pool]
        age_s = now_s - heard_s - (BACKLOG_STALE_S - STALE_S)
        return max(0.0, age_s) if _has_work(backlog) else 0.0

    def _is_over(self, pool: str, now_s: float) -> bool:
        """Return whether snapshots of other pools show that this one has no bulk work any more."""
        if pool not in self._backlogs or self._newest is None or now_s - self._newest[1] > STALE_S:
            return False
        return self._newest[0] - self._backlogs[pool][0].at_s > BACKLOG_STALE_S

    def _forget_wakes(self, now_s: float) -> None:
        """Forget wake requests that count no more; one is kept for twice `WAKE_S` at most."""
        if 0 <= now_s - self._wakes_checked_s < WAKE_S:
            return
        self._wakes_checked_s = now_s
        self._wakes = {
            key: one for key, one in self._wakes.items() if 0 <= now_s - one[1] <= WAKE_S
        }

    def _forget_silent(self, now_s: float) -> None:
        """Forget pools that no intake tells of any more, at most once in `STALE_S`."""
        if 0 <= now_s - self._silent_checked_s < STALE_S:
            return
        self._silent_checked_s = now_s
        self._backlogs = {
            pool: one for pool, one in self._backlogs.items() if 0 <= now_s - one[1] <= _SILENT_S
        }
        self._refused = {
            pool: at_s
            for pool, at_s in self._refused.items()
            if 0 <= now_s - at_s <= BACKLOG_STALE_S
        }


def _has_work(backlog: Backlog) -> bool:
    return bool(backlog.buckets or backlog.validating or backlog.next_deadline_s)


def _is_sound(one: BacklogBucket) -> bool:
    numbers = one.deadline_s, one.items, one.prompt_tokens, one.output_tokens
    return all(amount(number, "backlog") is not None for number in numbers)
