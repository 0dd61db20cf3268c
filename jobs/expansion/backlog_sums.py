"""Sums of the bulk work without a result row, by pool, endpoint and deadline. Pure.

Sums are of integers, so that they equal a new count after any number of changes. A change costs the
same with any number of jobs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from jobs.expansion.load_sums import DUE_SPAN_S, JobLoad
from jobs.input.token_sums import Tokens, default_tokens


class BacklogPlace(NamedTuple):
    """What is summed up in one: deadlines lie in the same span of `DUE_SPAN_S`."""

    endpoint: str
    is_blocked: bool  # it may not run now
    span: int


class BacklogWork(NamedTuple):
    """Items without a row and without the copies that are known, and their estimated tokens."""

    items: int
    prompt_tokens: int
    output_tokens: int
    deadline_s: float
    """The earliest since the place has work. Once its job has ended, and others of the same
    span have not, it is up to `DUE_SPAN_S` too early."""


PoolBacklog: TypeAlias = list[tuple[BacklogPlace, BacklogWork]]
"""The work of one pool."""

_NONE: Final = BacklogWork(0, 0, 0, float("inf"))


@dataclass(slots=True)
class BacklogSums:
    """The work of the open batches, those that are blocked included."""

    by_pool: dict[str, dict[BacklogPlace, BacklogWork]] = field(default_factory=dict)

    def replace(
        self, before: JobLoad | None, after: JobLoad | None, *, is_blocked: bool = False
    ) -> None:
        """Replace the load of a job. `is_blocked`: it is paused, or its tenant in quarantine.

        None: it was not open before, or is not open any more, or not blocked like this.
        """
        if before is not None:
            for place, work in _works(before, is_blocked):
                self._add(before.pool, place, work, -1)
        if after is not None:
            for place, work in _works(after, is_blocked):
                self._add(after.pool, place, work, 1)

    def copy(self) -> dict[str, PoolBacklog]:
        """Return the work of all pools, which later changes do not touch."""
        return {pool: list(places.items()) for pool, places in self.by_pool.items()}

    def differs_from(self, other: "BacklogSums") -> bool:
        """Whether items or tokens differ. Deadlines depend on which jobs have ended meanwhile."""
        if self.by_pool.keys() != other.by_pool.keys():
            return True
        pairs = [(places, other.by_pool[pool]) for pool, places in self.by_pool.items()]
        return any(
            mine.keys() != theirs.keys()
            or any(work[:3] != theirs[place][:3] for place, work in mine.items())
            for mine, theirs in pairs
        )

    def _add(self, pool: str, place: BacklogPlace, work: BacklogWork, sign: int) -> None:
        places = self.by_pool.get(pool)
        if places is None:
            places = self.by_pool[pool] = {}
        known = places.get(place, _NONE)
        items = known.items + sign * work.items
        if items:
            places[place] = BacklogWork(
                items,
                known.prompt_tokens + sign * work.prompt_tokens,
                known.output_tokens + sign * work.output_tokens,
                min(known.deadline_s, work.deadline_s),
            )
            return
        places.pop(place, None)
        if not places:
            del self.by_pool[pool]


def _works(load: JobLoad, is_blocked: bool) -> Iterator[tuple[BacklogPlace, BacklogWork]]:
    """Yield the work of a job.

    Outside of its hours, and before the time from which it may run, its items that are not emitted
    are blocked; those that are emitted run.
    """
    left = max(0, load.total - load.terminal)
    blocked = left if is_blocked else 0
    if load.opens_s and not is_blocked:
        blocked = min(left, max(0, load.total - load.emitted))
    span = int(load.deadline_s // DUE_SPAN_S)
    for items, waits in ((left - blocked, False), (blocked, True)):
        if items:
            tokens = job_tokens(load, items)
            work = BacklogWork(items, tokens.prompt, tokens.output, load.deadline_s)
            yield BacklogPlace(load.endpoint, waits, span), work


def job_tokens(load: JobLoad, items: int) -> Tokens:
    """Return the estimated tokens of `items` of a job: its mean, or the default if it has none."""
    if load.prompt_tokens is None or load.output_tokens is None or load.total <= 0:
        return default_tokens(load.endpoint, items, load.item_bytes)
    return Tokens(
        max(0, load.prompt_tokens) * items // load.total,
        max(0, load.output_tokens) * items // load.total,
    )
