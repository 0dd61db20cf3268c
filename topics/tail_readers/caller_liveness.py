"""Decides which online calls still have a live caller, from the heartbeats on `callers`.

Each API replica, a caller, publishes a heartbeat every `CALLER_HEARTBEAT_S`. A caller without one
for `CALLER_TIMEOUT_S` is dead, and its calls are abandoned unless they are durable. The timeout
counts from the last record read, not from wall time: a heartbeat that waits unread on the topic is
late, not missing. So a caller counts as dead only once the topic is known to be read up to a moment
that lies `CALLER_TIMEOUT_S` after its last heartbeat. Deadlines are by the caller's own clock,
which its heartbeats carry; the local clock only measures the time since the last heartbeat.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from topics.records.records import CallerHeartbeat, CallRef, JobRef

CALLER_HEARTBEAT_S: Final = 0.5
"""Interval between two heartbeats of a caller."""

CALLER_TIMEOUT_S: Final = 3.0
"""Time without a heartbeat after which a caller is dead."""

CALLER_RETENTION_S: Final = 3600.0
"""Time without a heartbeat after which a caller's clock is forgotten."""

ABORTED_CALLS_MAX: Final = 100_000
"""Aborted calls in memory; the oldest are evicted first."""


@dataclass(frozen=True, slots=True)
class _LastHeartbeat:
    read_at_s: float  # monotonic
    clock_s: float  # the caller's
    is_leaving: bool


class CallerLiveness:
    """The state of every caller. Time is an argument; one thread writes, any thread may read."""

    def __init__(self, *, since_s: float) -> None:
        """Know no caller; heartbeats are read from monotonic time `since_s` on."""
        self._since_s = self._complete_s = since_s
        self._undecided_s = -math.inf  # when `is_dead` last lacked knowledge of the topic's end
        self._callers: dict[str, _LastHeartbeat] = {}
        self._aborted: OrderedDict[UUID, None] = OrderedDict()

    def record_heartbeat(self, heartbeat: CallerHeartbeat, *, now_s: float) -> None:
        """Record a heartbeat that was read at monotonic time `now_s`."""
        self._callers[heartbeat.caller_id] = _LastHeartbeat(
            now_s, heartbeat.now_s, heartbeat.leaving
        )
        for request_id in heartbeat.aborted:
            self._aborted[request_id] = None
        while len(self._aborted) > ABORTED_CALLS_MAX:
            self._aborted.popitem(last=False)

    def mark_complete_until(self, moment_s: float) -> None:
        """Record that all heartbeats appended until this monotonic time have been read."""
        self._complete_s = max(self._complete_s, moment_s)

    def needs_end_offsets(self, *, now_s: float) -> bool:
        """Whether a caller's death cannot be decided before `mark_complete_until` is called."""
        return self._undecided_s >= self._complete_s or any(
            self._complete_s - last.read_at_s <= CALLER_TIMEOUT_S < now_s - last.read_at_s
            for last in self._callers.values()
        )

    def is_abandoned(self, job: JobRef, *, since_s: float, now_s: float) -> bool:
        """Whether an online call that arrived at `since_s` was aborted or its caller is dead.

        Never true of a batch. A durable call outlives its caller.
        """
        if job.call is None:
            return False
        if job.job_id in self._aborted:
            return True
        if job.call.durable:
            return False
        return self.is_dead(job.call.caller_id, since_s=since_s, now_s=now_s)

    def is_silent(self, caller_id: str, *, now_s: float) -> bool:
        """Whether no heartbeat was read lately: the caller is dead or its heartbeats are late.

        For an unknown caller the timeout counts from the start of reading.
        """
        last = self._callers.get(caller_id)
        if last is not None and last.is_leaving:
            return True
        return now_s - (self._since_s if last is None else last.read_at_s) > CALLER_TIMEOUT_S

    def is_dead(self, caller_id: str, *, since_s: float, now_s: float) -> bool:
        """Whether the caller has left, or timed out at a moment after `since_s`.

        `since_s` is when its call arrived here: a caller that lived then is known by that moment.
        """
        if not self.is_silent(caller_id, now_s=now_s):
            return False
        last = self._callers.get(caller_id)
        if last is not None and last.is_leaving:
            return True
        last_s = self._since_s if last is None else last.read_at_s
        if self._complete_s > since_s and self._complete_s - last_s > CALLER_TIMEOUT_S:
            return True
        self._undecided_s = now_s
        return False

    def is_expired(self, job: JobRef, *, now_s: float) -> bool:
        """Whether an online call's deadline is past; False while its caller's clock is unknown.

        The caller enforces deadlines too, by aborting; this is earlier, and covers a dead caller.
        """
        clock_s = None if job.call is None else self._clock_s(job.call, now_s)
        return clock_s is not None and clock_s > job.deadline_s

    def start_wait_left_s(self, job: JobRef, *, now_s: float) -> float | None:
        """Return the seconds that an online call may still wait before its execution starts.

        None when only its deadline bounds the wait, or while its caller's clock is unknown.
        """
        if job.call is None or not job.call.begin_by_s:
            return None
        clock_s = self._clock_s(job.call, now_s)
        return None if clock_s is None else job.call.begin_by_s - clock_s

    def evict_stale(self, *, now_s: float) -> None:
        """Forget callers without a heartbeat for `CALLER_RETENTION_S`."""
        for caller_id, last in list(self._callers.items()):
            if now_s - last.read_at_s > CALLER_RETENTION_S:
                del self._callers[caller_id]

    def _clock_s(self, call: CallRef, now_s: float) -> float | None:
        last = self._callers.get(call.caller_id)
        return None if last is None else last.clock_s + (now_s - last.read_at_s)
