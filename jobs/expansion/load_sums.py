"""The load of an open job, and the sums of loads from which windows are computed. Pure."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from core.limits import CHUNK_BYTES_MAX
from core.urgency import PRIORITY_DEFAULT, rank, tail_rank

TenantPool: TypeAlias = tuple[UUID, str]
"""A tenant and a pool; the tenant's jobs on the pool share one window."""

DUE_SPAN_S: Final = 10.0
"""Width of the spans in which work is summed up by its deadline."""

Age: TypeAlias = tuple[float, UUID]
"""Orders jobs, the oldest first: the time of creation, seconds since the epoch, and the id."""


class JobLoad(NamedTuple):
    """The load of a job that is not closed. A tuple: a process holds one for each open job."""

    job_id: UUID
    tenant_id: UUID
    pool: str
    total: int
    emitted: int  # items below the cursor
    terminal: int  # of those, items that are no longer outstanding
    priority: int = PRIORITY_DEFAULT
    left_s: float = 0.0  # to its deadline, by the database's clock
    version: int = 0  # of its control state
    item_bytes: int = 0  # mean size of the lines of its first file
    has_void_items: bool = False  # it was resumed, and `ResumeSweep` has not re-emitted them yet
    created_s: float = 0.0  # seconds since the epoch
    has_copies: bool = False  # items below the cursor that take over the result of another
    deadline_s: float = 0.0  # seconds since the epoch
    not_before_s: float = 0.0  # the same; no item is emitted before
    bulk_hours: str = ""  # of the job; empty: it has none of its own
    required_versions: str = ""  # one in each line; see `required_versions`
    endpoint: str = ""
    prompt_tokens: int | None = None  # of all its items, estimated; None: not known
    output_tokens: int | None = None  # the same, expected
    opens_s: float = 0.0  # when its items may be emitted; 0: now

    @property
    def tenant_pool(self) -> TenantPool:
        """The key of its window."""
        return self.tenant_id, self.pool

    @property
    def age(self) -> Age:
        """The key by which jobs are ordered, the oldest first."""
        return self.created_s, self.job_id

    @property
    def has_only_copies_left(self) -> bool:
        """Whether all its items are terminal except copies, which get their rows by a record."""
        return self.has_copies and not self.outstanding and self.emitted >= self.total

    @property
    def logged_item_bytes(self) -> int:
        """Mean bytes of an item on the log: items above a chunk travel by reference."""
        return 0 if self.item_bytes > CHUNK_BYTES_MAX else self.item_bytes

    @property
    def rank(self) -> int:
        """Its rank among the jobs of its tenant: the lowest goes first, equal ranks share.

        The tail of a job is lifted: its last items keep its results and its files waiting.
        """
        if self.is_in_tail:
            return tail_rank(self.priority)
        return rank(self.priority, self.left_s)

    @property
    def is_in_tail(self) -> bool:
        """Whether only its last items are to be emitted."""
        # Most jobs are not near their end: the first comparison is cheap.
        return (self.total - self.emitted) * 10 <= self.total and (
            0 < self.remaining <= tail_items(self.total)
        )

    @property
    def unfinished(self) -> int:
        """Items that are outstanding, or may be emitted now."""
        if self.has_void_items or self.opens_s:
            return self.outstanding
        return max(self.total - self.terminal, self.total - self.emitted, 0)

    @property
    def outstanding(self) -> int:
        """Emitted items without a row. Never negative: a row proves that its item was emitted."""
        return max(0, self.emitted - self.terminal)

    @property
    def remaining(self) -> int:
        """Items in the input file that may be emitted.

        Zero outside of its hours, and while the job has void items: an item that is emitted above
        the cursor before those below it are re-emitted would count as missing, and run twice.
        """
        return 0 if self.has_void_items or self.opens_s else max(0, self.total - self.emitted)


def tail_items(total: int) -> int:
    """Return how many of the last items to emit are the tail of a job: 1 %, or up to 100.

    Never more than a tenth, so that many small jobs do not pass a large one.
    """
    return max(total // 100, min(100, total // 10))


@dataclass(slots=True)
class PoolLoad:
    """Sums over the open jobs of a pool."""

    active_jobs: int = 0  # with items that are outstanding or not emitted yet
    outstanding: int = 0
    outstanding_bytes: int = 0
    unfinished: int = 0  # items that are outstanding or not emitted yet
    unfinished_bytes: int = 0


@dataclass(slots=True)
class TenantPoolLoad:
    """Sums over the open jobs of a tenant on a pool, and the order of its expandable jobs."""

    outstanding: int = 0
    remaining: int = 0
    outstanding_by_rank: Counter[int] = field(default_factory=Counter)
    expandable: dict[int, list[Age]] = field(default_factory=dict)
    """The jobs with remaining items by rank, the oldest first."""

    due: dict[int, dict[int, int]] = field(default_factory=dict)
    """Unfinished items by priority, and by the span of time in which their deadline lies."""

    def in_order(self) -> Iterator[tuple[int, Age]]:
        """Yield the jobs with remaining items: by rank, and then by age."""
        for job_rank in sorted(self.expandable):
            for age in self.expandable[job_rank]:
                yield job_rank, age


@dataclass(slots=True)
class LoadSums:
    """Sums of loads by pool, and by tenant and pool. A change costs the same with any number."""

    by_pool: dict[str, PoolLoad] = field(default_factory=dict)
    by_tenant_pool: dict[TenantPool, TenantPoolLoad] = field(default_factory=dict)

    @classmethod
    def of(cls, loads: Iterable[JobLoad]) -> "LoadSums":
        """Return the sums of `loads`."""
        sums = cls()
        for load in loads:
            sums.replace(None, load)
        return sums

    def replace(self, before: JobLoad | None, after: JobLoad | None) -> None:
        """Replace the load of a job; None: it was not open before, or is not open any more."""
        if before is not None:
            self._add(before, -1)
        if after is not None:
            self._add(after, 1)
        place_before, place_after = _place(before), _place(after)
        if place_before != place_after:
            if place_before is not None:
                self._remove_expandable(*place_before)
            if place_after is not None:
                key, job_rank, age = place_after
                insort(self.by_tenant_pool[key].expandable.setdefault(job_rank, []), age)
        if before is not None:
            self._drop_empty(before)

    def _add(self, load: JobLoad, sign: int) -> None:
        outstanding, remaining = load.outstanding, load.remaining
        if not outstanding and not remaining:
            return
        unfinished, item_bytes = outstanding + remaining, load.logged_item_bytes
        pool = self.by_pool.setdefault(load.pool, PoolLoad())
        pool.active_jobs += sign
        pool.outstanding += sign * outstanding
        pool.outstanding_bytes += sign * outstanding * item_bytes
        pool.unfinished += sign * unfinished
        pool.unfinished_bytes += sign * unfinished * item_bytes
        tenant = self.by_tenant_pool.setdefault(load.tenant_pool, TenantPoolLoad())
        tenant.outstanding += sign * outstanding
        tenant.remaining += sign * remaining
        due = tenant.due.get(load.priority)
        if due is None:
            due = tenant.due[load.priority] = {}
        span = int(load.deadline_s // DUE_SPAN_S)
        due[span] = due.get(span, 0) + sign * unfinished
        if not due[span]:
            del due[span]
            if not due:
                del tenant.due[load.priority]
        if outstanding:
            job_rank = load.rank
            tenant.outstanding_by_rank[job_rank] += sign * outstanding
            if not tenant.outstanding_by_rank[job_rank]:
                del tenant.outstanding_by_rank[job_rank]

    def _remove_expandable(self, key: TenantPool, job_rank: int, age: Age) -> None:
        expandable = self.by_tenant_pool[key].expandable
        ages = expandable[job_rank]
        del ages[bisect_left(ages, age)]
        if not ages:
            del expandable[job_rank]

    def _drop_empty(self, load: JobLoad) -> None:
        pool = self.by_pool.get(load.pool)
        if pool is not None and not pool.active_jobs:
            del self.by_pool[load.pool]
        tenant = self.by_tenant_pool.get(load.tenant_pool)
        if tenant is not None and not tenant.outstanding and not tenant.remaining:
            del self.by_tenant_pool[load.tenant_pool]


def _place(load: JobLoad | None) -> tuple[TenantPool, int, Age] | None:
    """Return where a job stands among those that can be expanded."""
    if load is None or not load.remaining:
        return None
    return load.tenant_pool, load.rank, load.age
