"""Threads that owners of work take in turn: a long queue delays its owner alone."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

T = TypeVar("T")

Owner: TypeAlias = UUID | str
"""A tenant, or the name of a kind of work that is ours."""


@dataclass(frozen=True, slots=True)
class _Work:
    owner: Owner
    run: Callable[[], Any]
    ended: Future[Any]


class FairThreadPool:
    """A pool of threads with a queue for each owner; may be used in any thread.

    An owner has half of the threads at most, and tenants leave a quarter to work that is ours, so
    that none of them keeps a key from being looked up. A pool of one thread is everybody's.
    """

    def __init__(self, count: int, name: str) -> None:
        """`count` threads, which begin as they are needed."""
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock = Lock()
        self._free = count
        self._of_one_max = max(1, count // 2)
        self._of_tenants_max = count - min(count - 1, max(1, count // 4))
        self._running: Counter[Owner] = Counter()
        self._of_tenants = 0
        self._queues: OrderedDict[Owner, deque[_Work]] = OrderedDict()  # whose turn is next: first

    def submit(self, owner: Owner, run: Callable[[], T]) -> Future[T]:
        """Run it in its owner's turn. One whose future is cancelled before never runs."""
        work = _Work(owner, run, Future())
        with self._lock:
            self._queues.setdefault(owner, deque()).append(work)
            begun = self._next()
        if begun is not None:
            self._threads.submit(self._run, begun)
        return work.ended

    def close(self) -> None:
        """Cancel what waits; do not wait for what runs."""
        with self._lock:
            queues, self._queues = self._queues, OrderedDict()
        for queue in queues.values():
            for work in queue:
                work.ended.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: _Work | None) -> None:
        """Run work, and what comes after it, without giving the thread back in between."""
        while work is not None:
            if work.ended.set_running_or_notify_cancel():
                try:
                    work.ended.set_result(work.run())
                except BaseException as error:  # noqa: BLE001  it is the future's, as in any pool
                    work.ended.set_exception(error)
            with self._lock:
                self._leave(work.owner)
                work = self._next()

    def _next(self) -> _Work | None:
        """Take a thread for whoever is next in turn and may have one; None when there is nobody.

        What was given up costs its owner no turn.
        """
        if not self._free:
            return None
        while True:
            owner = next((owner for owner in self._queues if self._may_run(owner)), None)
            if owner is None:
                return None
            queue = self._queues[owner]
            while queue and queue[0].ended.cancelled():
                queue.popleft()
            if queue:
                break
            del self._queues[owner]
        work = queue.popleft()
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        self._free -= 1
        self._running[owner] += 1
        self._of_tenants += isinstance(owner, UUID)
        return work

    def _leave(self, owner: Owner) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._of_tenants -= isinstance(owner, UUID)

    def _may_run(self, owner: Owner) -> bool:
        is_barred = isinstance(owner, UUID) and self._of_tenants >= self._of_tenants_max
        return self._running[owner] < self._of_one_max and not is_barred
