"""A thread pool that serves the owners of work round-robin: a long queue delays only its owner."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

T = TypeVar("T")

Owner: TypeAlias = UUID | str
"""A tenant, or the name of a kind of internal work."""


@dataclass(frozen=True, slots=True)
class _Work:
    owner: Owner
    run: Callable[[], Any]
    future: Future[Any]


class FairThreadPool:
    """A thread pool with a queue for each owner. Thread-safe.

    An owner may use half of the threads. Tenants together leave a quarter to internal work, so that
    they cannot delay the look-up of keys. A pool of one thread is shared by all.
    """

    def __init__(self, count: int, name: str) -> None:
        """Up to `count` threads, started as they are needed."""
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock = Lock()
        self._idle_count = count
        self._owner_max = max(1, count // 2)
        self._tenants_max = count - min(count - 1, max(1, count // 4))
        self._running: Counter[Owner] = Counter()
        self._tenants_running = 0
        # the owner to serve next is first
        self._queues: OrderedDict[Owner, deque[_Work]] = OrderedDict()

    def submit(self, owner: Owner, run: Callable[[], T]) -> Future[T]:
        """Queue work of an owner. Work whose future is cancelled before it starts never runs."""
        work = _Work(owner, run, Future())
        with self._lock:
            self._queues.setdefault(owner, deque()).append(work)
            next_work = self._start_next()
        if next_work is not None:
            self._threads.submit(self._run, next_work)
        return work.future

    def close(self) -> None:
        """Cancel queued work; do not wait for running work."""
        with self._lock:
            queues, self._queues = self._queues, OrderedDict()
        for queue in queues.values():
            for work in queue:
                work.future.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: _Work | None) -> None:
        """Run work, and then the next work, without returning the thread in between."""
        while work is not None:
            if work.future.set_running_or_notify_cancel():
                try:
                    work.future.set_result(work.run())
                except BaseException as error:  # noqa: BLE001  passed to the future
                    work.future.set_exception(error)
            with self._lock:
                self._release(work.owner)
                work = self._start_next()

    def _start_next(self) -> _Work | None:
        """Reserve a thread for the next owner below its share; None when there is no thread or
        owner.

        Cancelled work does not cost its owner a round.
        """
        if not self._idle_count:
            return None
        while True:
            owner = next((owner for owner in self._queues if self._may_run(owner)), None)
            if owner is None:
                return None
            queue = self._queues[owner]
            while queue and queue[0].future.cancelled():
                queue.popleft()
            if queue:
                break
            del self._queues[owner]
        work = queue.popleft()
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        self._idle_count -= 1
        self._running[owner] += 1
        self._tenants_running += isinstance(owner, UUID)
        return work

    def _release(self, owner: Owner) -> None:
        self._idle_count += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._tenants_running -= isinstance(owner, UUID)

    def _may_run(self, owner: Owner) -> bool:
        exceeds_share = isinstance(owner, UUID) and self._tenants_running >= self._tenants_max
        return self._running[owner] < self._owner_max and not exceeds_share
