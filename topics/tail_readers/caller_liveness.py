"""Who of those that wait for online calls lives, as far as their news on `callers` tell.

A caller repeats itself every `CALLER_HEARTBEAT_S`. One of which nothing was said for `CALLER_TIMEOUT_S` is dead,
and its calls are over, except durable ones. That is judged by the feed and not by the clock alone:
what was said while nobody here was reading is late, and no silence. So a death needs a moment
until which everything that was said is known. Deadlines are by the caller's clock, which its news
carry: no clock of ours takes part, only the time between two of our own readings.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from topics.records.records import CallerHeartbeat, CallRef, JobRef

CALLER_HEARTBEAT_S: Final = 0.5
"""How often a caller says that it lives."""

CALLER_TIMEOUT_S: Final = 3.0
"""Silence after which a caller is dead."""

CALLER_RETENTION_S: Final = 3600.0
"""Silence after which a caller's clock is not kept any more."""

ABORTED_CALLS_MAX: Final = 100_000
"""Aborted requests that are remembered; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class _Word:
    """The last that was heard of a caller."""

    heard_s: float  # monotonic
    clock_s: float  # the caller's
    is_last: bool


class CallerLiveness:
    """What news have told so far. Time is an argument; one thread hears, any may ask."""

    def __init__(self, *, since_s: float) -> None:
        """Nothing is known; news are followed from monotonic time `since_s` on."""
        self._since_s = self._complete_s = since_s
        self._doubted_s = -math.inf  # when somebody lacked a proof last
        self._words: dict[str, _Word] = {}
        self._aborted: OrderedDict[UUID, None] = OrderedDict()

    def record_heartbeat(self, news: CallerHeartbeat, *, now_s: float) -> None:
        """Take in news that arrived at monotonic time `now_s`."""
        self._words[news.caller_id] = _Word(now_s, news.now_s, news.leaving)
        for request_id in news.aborted:
            self._aborted[request_id] = None
        while len(self._aborted) > ABORTED_CALLS_MAX:
            self._aborted.popitem(last=False)

    def mark_complete_until(self, moment_s: float) -> None:
        """All that was said until this monotonic time has been heard here."""
        self._complete_s = max(self._complete_s, moment_s)

    def needs_end_offsets(self, *, now_s: float) -> bool:
        """Whether somebody's silence is not known to be one, until `complete_until` says more."""
        return self._doubted_s >= self._complete_s or any(
            self._complete_s - word.heard_s <= CALLER_TIMEOUT_S < now_s - word.heard_s
            for word in self._words.values()
        )

    def is_abandoned(self, job: JobRef, *, since_s: float, now_s: float) -> bool:
        """Whether nobody waits for an online request that is here since; never true of a batch."""
        if job.call is None:
            return False
        if job.job_id in self._aborted:
            return True
        if job.call.durable:
            return False
        return self.is_dead(job.call.caller_id, since_s=since_s, now_s=now_s)

    def is_silent(self, caller_id: str, *, now_s: float) -> bool:
        """Whether nothing was heard of the caller lately: it is dead, or its news are late.

        One never heard of has as long from the start.
        """
        word = self._words.get(caller_id)
        if word is not None and word.is_last:
            return True
        return now_s - (self._since_s if word is None else word.heard_s) > CALLER_TIMEOUT_S

    def is_dead(self, caller_id: str, *, since_s: float, now_s: float) -> bool:
        """Whether the caller has left, or was silent up to a moment after `since_s`.

        That is when its request came here: whoever lived then was heard by that moment.
        """
        if not self.is_silent(caller_id, now_s=now_s):
            return False
        word = self._words.get(caller_id)
        if word is not None and word.is_last:
            return True
        last_s = self._since_s if word is None else word.heard_s
        if self._complete_s > since_s and self._complete_s - last_s > CALLER_TIMEOUT_S:
            return True
        self._doubted_s = now_s
        return False

    def is_expired(self, job: JobRef, *, now_s: float) -> bool:
        """Whether an online request's deadline is past; False while its caller's clock is unknown.

        The caller keeps deadlines too and aborts: this only sees it earlier, or instead of a dead
        caller.
        """
        clock_s = None if job.call is None else self._clock_s(job.call, now_s)
        return clock_s is not None and clock_s > job.deadline_s

    def start_wait_left_s(self, job: JobRef, *, now_s: float) -> float | None:
        """Return how long an online request may still wait until it begins.

        None where nothing but its deadline bounds that, or its caller's clock is unknown.
        """
        if job.call is None or not job.call.begin_by_s:
            return None
        clock_s = self._clock_s(job.call, now_s)
        return None if clock_s is None else job.call.begin_by_s - clock_s

    def _clock_s(self, call: CallRef, now_s: float) -> float | None:
        word = self._words.get(call.caller_id)
        return None if word is None else word.clock_s + (now_s - word.heard_s)

    def evict_stale(self, *, now_s: float) -> None:
        """Drop callers that were silent for `CALLER_RETENTION_S`."""
        for caller_id, word in list(self._words.items()):
            if now_s - word.heard_s > CALLER_RETENTION_S:
                del self._words[caller_id]
