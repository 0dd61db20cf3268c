"""Builds the records of the topic `backlog` from the work of open batches. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

from jobs.expansion.backlog_sums import OCTAVES_MAX, BacklogWork, OctaveWork
from topics.records.scaling import BACKLOG_BUCKETS_MAX, Backlog, BacklogBucket

REPEAT_S: Final = 30.0
"""Interval in which the record of a pool without work is repeated."""

FORGET_S: Final = 300.0
"""How long it is repeated after the work ended, if no model of the pool is served."""

SERVED_POOLS_MAX: Final = 1_000
"""Served pools that are published without work, the first by name: an autoscaler scales as many."""

_ENDED_POOLS_MAX: Final = 1_000  # the pool whose work ended first is forgotten


class ValidatingFiles(NamedTuple):
    """The files of one pool without a verdict."""

    jobs: int
    size_bytes: int
    deadline_s: float  # the earliest


def buckets_of(
    works: Iterable[OctaveWork], *, count_max: int = BACKLOG_BUCKETS_MAX
) -> list[BacklogBucket]:
    """Return a bucket for each octave and endpoint, the earliest first.

    While there are more than `count_max`, the farthest octave is merged into the one before; after
    that the endpoints with the least items are merged into the largest. Nothing is left out.
    """
    found: dict[tuple[int, str], BacklogWork] = {}
    for one in works:
        _add(found, (one.octave, one.endpoint), one.work)
    for last in range(OCTAVES_MAX, 0, -1):
        if len(found) <= count_max:
            break
        for key in [key for key in found if key[0] == last]:
            _move(found, key, (last - 1, key[1]))
    if len(found) > count_max:
        largest_first = sorted(found, key=lambda key: (-found[key].items, key))
        for key in largest_first[count_max:]:
            _move(found, key, largest_first[0])
    rows = sorted((one.deadline_s, endpoint, one) for (_, endpoint), one in found.items())
    return [
        BacklogBucket(
            deadline_s, endpoint, one.items, float(one.prompt_tokens), float(one.output_tokens)
        )
        for deadline_s, endpoint, one in rows
    ]


def _move(
    found: dict[tuple[int, str], BacklogWork], key: tuple[int, str], to: tuple[int, str]
) -> None:
    _add(found, to, found.pop(key))


def _add(found: dict[tuple[int, str], BacklogWork], to: tuple[int, str], work: BacklogWork) -> None:
    known = found.get(to)
    found[to] = work if known is None else _merged(known, work)


def _merged(one: BacklogWork, other: BacklogWork) -> BacklogWork:
    return BacklogWork(
        one.items + other.items,
        one.prompt_tokens + other.prompt_tokens,
        one.output_tokens + other.output_tokens,
        min(one.deadline_s, other.deadline_s),
    )


@dataclass(frozen=True, slots=True)
class BacklogSnapshot:
    """All that the records of one second tell."""

    at_s: float  # by the database's time
    works: Mapping[str, Sequence[OctaveWork]] = field(default_factory=dict)  # by pool
    epochs: Mapping[str, int] = field(default_factory=dict)  # the highest of leases, by pool
    validating: Mapping[str, ValidatingFiles] = field(default_factory=dict)

    @property
    def pools(self) -> set[str]:
        """The pools with work."""
        return {*self.works, *self.validating}

    def record(self, intake_id: str, pool: str) -> Backlog:
        """Return the record of a pool; of one without work, it has no buckets."""
        works = self.works.get(pool, ())
        files = self.validating.get(pool)
        deadlines = [one.work.deadline_s for one in works if not one.is_stopped]
        if files is not None:
            deadlines.append(files.deadline_s)
        return Backlog(
            intake_id=intake_id,
            pool=pool,
            at_s=self.at_s,
            epoch=self.epochs.get(pool, 0),
            buckets=buckets_of(one for one in works if not one.is_blocked),
            paused=buckets_of(one for one in works if one.is_blocked),
            validating=files.jobs if files else 0,
            validating_bytes=files.size_bytes if files else 0,
            next_deadline_s=min(deadlines, default=0.0),
        )


@dataclass(slots=True)
class PublishedPools:
    """Which pools to publish: those with work, those that are served, and for a while those whose
    work has ended.
    """

    _with_work: set[str] = field(default_factory=set)
    _ended_s: dict[str, float] = field(default_factory=dict)
    """When the work of a pool ended, the oldest first."""

    _due_s: dict[str, float] = field(default_factory=dict)
    """When the record of a pool without work is due again."""

    def due(self, pools: set[str], now_s: float, served: Iterable[str] = ()) -> list[str]:
        """Return the pools to publish now, given those with work and those that are `served`.

        Each is named once. Call it once for each snapshot. `now_s` is monotonic.
        """
        for pool in sorted(self._with_work - pools):
            self._ended_s[pool] = self._due_s[pool] = now_s
        self._with_work = set(pools)
        ended = {
            pool: ended_s
            for pool, ended_s in self._ended_s.items()
            if now_s - ended_s <= FORGET_S and pool not in pools
        }
        self._ended_s = dict(islice(ended.items(), max(0, len(ended) - _ENDED_POOLS_MAX), None))
        due, due_s = sorted(pools), {}
        for pool in dict.fromkeys(chain(self._ended_s, islice(served, SERVED_POOLS_MAX))):
            if pool in pools:
                continue
            due_s[pool] = self._due_s.get(pool, now_s)
            if now_s >= due_s[pool]:
                due_s[pool] = now_s + REPEAT_S
                due.append(pool)
        self._due_s = due_s
        return due
