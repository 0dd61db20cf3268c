"""Which online calls somebody still waits for, as API replicas tell on `callers`.

A caller repeats itself every `BEAT_S`. One that is silent for `SILENCE_S_MAX` is dead, and its
calls are over, except durable ones. Deadlines are by the caller's clock, which its news carry: no
clock of ours takes part, only the time between two of our own readings.
"""

from collections import OrderedDict
from collections.abc import Callable
from uuid import UUID

from core.clock import Clock
from topics.catalogue import CALLERS
from topics.following import Following, readable
from topics.received import Received
from topics.records import CallerNews, CallRef, JobRef
from topics.settings import KafkaSettings
from topics.tail import TopicTail

BEAT_S = 0.5
"""How often a caller says that it lives."""

SILENCE_S_MAX = 3.0
"""Silence after which a caller is dead."""

FORGOTTEN_AFTER_S = 3600.0
"""Silence after which a caller's clock is not kept any more."""

ABORTED_MAX = 100_000
"""Aborted requests that are remembered; the oldest are forgotten first."""


class KnownCallers:
    """What news have told so far. Time is an argument; one thread writes, any may read."""

    def __init__(self, *, since_s: float) -> None:
        """Nothing is known; news are followed from monotonic time `since_s` on."""
        self._since_s = since_s
        self._heard: dict[str, tuple[float, float]] = {}  # monotonic time, caller's clock
        self._aborted: OrderedDict[UUID, None] = OrderedDict()

    def heard(self, news: CallerNews, *, now_s: float) -> None:
        """Take in news that arrived at monotonic time `now_s`."""
        if news.leaving:
            self._heard[news.caller_id] = (now_s - SILENCE_S_MAX - 1.0, news.now_s)
        else:
            self._heard[news.caller_id] = (now_s, news.now_s)
        for request_id in news.aborted:
            self._aborted[request_id] = None
        while len(self._aborted) > ABORTED_MAX:
            self._aborted.popitem(last=False)

    def is_gone(self, job: JobRef, *, now_s: float) -> bool:
        """Whether nobody waits for an online request; never true of a batch."""
        if job.call is None:
            return False
        if job.job_id in self._aborted:
            return True
        return not job.call.durable and not self.is_alive(job.call.caller_id, now_s=now_s)

    def is_alive(self, caller_id: str, *, now_s: float) -> bool:
        """Whether the caller was heard of lately; one never heard of has as long from the start."""
        last_s, _ = self._heard.get(caller_id, (self._since_s, 0.0))
        return now_s - last_s <= SILENCE_S_MAX

    def is_expired(self, job: JobRef, *, now_s: float) -> bool:
        """Whether an online request's deadline is past; False while its caller's clock is unknown.

        The caller keeps deadlines too and aborts: this only sees it earlier, or instead of a dead
        caller.
        """
        clock_s = None if job.call is None else self._clock_s(job.call, now_s)
        return clock_s is not None and clock_s > job.deadline_s

    def patience_s(self, job: JobRef, *, now_s: float) -> float | None:
        """Return how long an online request may still wait until it begins.

        None where nothing but its deadline bounds that, or its caller's clock is unknown.
        """
        if job.call is None or not job.call.begin_by_s:
            return None
        clock_s = self._clock_s(job.call, now_s)
        return None if clock_s is None else job.call.begin_by_s - clock_s

    def _clock_s(self, call: CallRef, now_s: float) -> float | None:
        if call.caller_id not in self._heard:
            return None
        heard_s, clock_s = self._heard[call.caller_id]
        return clock_s + (now_s - heard_s)

    def forget_silent(self, *, now_s: float) -> None:
        """Drop callers that were silent for `FORGOTTEN_AFTER_S`."""
        for caller_id, (heard_s, _) in list(self._heard.items()):
            if now_s - heard_s > FORGOTTEN_AFTER_S:
                del self._heard[caller_id]


class Callers:
    """Follows `callers` in a thread, from now on."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        client_id: str,
        clock: Clock,
        on_news: Callable[[CallerNews], None] = lambda _: None,
    ) -> None:
        """`on_news` is called in the thread, after the news are known here."""
        self._tail = TopicTail(settings, CALLERS, client_id=f"{client_id}-callers")
        self._clock, self._on_news = clock, on_news
        self._known = KnownCallers(since_s=clock.monotonic_s())
        self._following = Following(self._tail, self._apply, name="callers-tail")

    def start(self, timeout_s: float) -> None:
        """Follow from the present end. Raises LogUnavailableError."""
        self._tail.skip_to_end(timeout_s)
        self._known = KnownCallers(since_s=self._clock.monotonic_s())
        self._following.start()

    def is_gone(self, job: JobRef) -> bool:
        """Whether nobody waits for an online request, or its deadline is past.

        Raises what ended the following: without news the process must not go on.
        """
        self._following.check()
        if job.call is None:
            return False
        now_s = self._clock.monotonic_s()
        return self._known.is_gone(job, now_s=now_s) or self._known.is_expired(job, now_s=now_s)

    def is_expired(self, job: JobRef) -> bool:
        """Whether an online request's deadline is past, as far as its caller's clock is known."""
        return self._known.is_expired(job, now_s=self._clock.monotonic_s())

    def patience_s(self, job: JobRef) -> float | None:
        """Return how long an online request may still wait until it begins; None without a bound.

        Nor is there one while its caller's clock is unknown.
        """
        return self._known.patience_s(job, now_s=self._clock.monotonic_s())

    def is_unwanted(self, job: JobRef) -> bool:
        """Whether an online request that has not begun need not be passed on.

        Of a durable one that waited too long a replica has to say so: its row must end.
        """
        if self.is_gone(job):
            return True
        if job.call is None or job.call.durable:
            return False
        patience_s = self.patience_s(job)
        return patience_s is not None and patience_s <= 0

    def is_alive(self, caller_id: str) -> bool:
        """Whether the caller was heard of lately."""
        return self._known.is_alive(caller_id, now_s=self._clock.monotonic_s())

    def stop(self) -> None:
        """Stop following."""
        self._following.stop()

    def _apply(self, records: list[Received]) -> None:
        now_s = self._clock.monotonic_s()
        for _, news in readable(CallerNews, records):
            if news is not None:
                self._known.heard(news, now_s=now_s)
                self._on_news(news)
        self._known.forget_silent(now_s=now_s)
