"""Stages adapters for an engine that serves: verified like models, in threads, within a time.

What is wrong with an adapter fails its items. What is wrong with this replica, or with a service
that it needs, requeues them. Neither ends the process.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from core.clock import Clock
from core.errors import Disposition, MillraceError, PoolBusyError
from gpu_consumers.adapters.adapter_slots import AdapterRefusedError
from gpu_consumers.weights import metrics
from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason, StagingStoppedError
from gpu_consumers.weights.model_loading import ModelLoader, StagedModel

STAGE_S_MAX: Final = 120.0
"""Time to stage an adapter, after which its items are requeued."""

REFUSAL_S: Final = 30.0
"""How long a refusal holds without another look: each item of the adapter would download it."""

_REFUSALS_MAX: Final = 1_000
_GRACE_S: Final = 5.0
"""Time of a thread to end when its time is over; then it is left to itself."""

_THREADS: Final = 4

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagedAdapter:
    """A folder of verified files; a `PinnedFolder`."""

    path: Path
    release: Callable[[], None]


class AdapterStaging:
    """Stages adapters of the loaded version. Used on one event loop, which it does not block."""

    def __init__(
        self,
        open_loader: Callable[[Wait], AbstractContextManager[ModelLoader]],
        *,
        clock: Clock,
        stop: threading.Event,
        stage_s_max: float = STAGE_S_MAX,
    ) -> None:
        """`open_loader` opens a loader of adapters whose work ends when its argument is true."""
        self._open_loader, self._clock, self._stop = open_loader, clock, stop
        self._stage_s_max = stage_s_max
        self._is_closed = threading.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="adapter-staging")
        self._refusals: dict[str, tuple[float, str]] = {}  # until when, and why; oldest first

    async def stage(self, version: str) -> StagedAdapter:
        """Return the verified files of an adapter, held until they are released.

        Raises AdapterRefusedError, and PoolBusyError and other errors with the disposition RETRY.
        """
        self._raise_recent_refusal(version)
        deadline_s = self._clock.monotonic_s() + self._stage_s_max
        staging = self._threads.submit(self._stage, version, deadline_s)
        try:
            async with asyncio.timeout(self._stage_s_max + _GRACE_S):
                model = await asyncio.wrap_future(staging)
        except ModelRefusedError as refusal:
            raise self._item_failure(version, refusal) from refusal
        except MillraceError as failure:
            if failure.disposition is Disposition.RETRY:
                raise
            raise _unstaged(version, failure) from failure
        except Exception as failure:
            staging.add_done_callback(_release_late)
            raise _unstaged(version, failure) from failure
        except asyncio.CancelledError:
            staging.add_done_callback(_release_late)
            raise
        _LOG.info("adapter_staged", extra={"version": version, "signed_by": model.signed_by})
        return StagedAdapter(model.folder, model.release)

    async def close(self) -> bool:
        """End what is staged now; return whether all of it has ended."""
        self._is_closed.set()
        ended = asyncio.to_thread(self._threads.shutdown)
        try:
            await asyncio.wait_for(ended, _GRACE_S)
        except TimeoutError:
            return False
        return True

    def _stage(self, version: str, deadline_s: float) -> StagedModel:
        """Stage in a thread."""

        def wait(seconds: float) -> bool:
            left_s = deadline_s - self._clock.monotonic_s()
            is_stopped = self._stop.wait(max(0.0, min(seconds, left_s)))
            return is_stopped or left_s <= seconds or self._is_closed.is_set()

        if wait(0):
            raise StagingStoppedError
        with self._open_loader(wait) as loader:
            return loader.stage(version)

    def _item_failure(self, version: str, refusal: ModelRefusedError) -> MillraceError:
        """Return what the items of a refused adapter fail with, or are requeued by."""
        reason = refusal.reason.value
        metrics.ADAPTER_REFUSED.labels(reason).inc()
        facts = {"version": version, "reason": reason, "detail": str(refusal)}
        _LOG.warning("adapter_refused", extra=facts)
        if refusal.reason is RefusalReason.CACHE:  # the disk of this replica, not the adapter
            return PoolBusyError("The adapter does not fit the weight cache of this replica now.")
        text = f"The adapter is not loaded: {refusal}"
        self._refusals.pop(version, None)
        self._refusals[version] = self._clock.monotonic_s() + REFUSAL_S, text
        if len(self._refusals) > _REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]
        return AdapterRefusedError(text)

    def _raise_recent_refusal(self, version: str) -> None:
        until_s, text = self._refusals.get(version, (0.0, ""))
        if text and self._clock.monotonic_s() < until_s:
            raise AdapterRefusedError(text)


def _unstaged(version: str, failure: Exception) -> PoolBusyError:
    """Return what requeues the items of an adapter that this replica cannot stage now."""
    if not isinstance(failure, StagingStoppedError):
        facts = {"version": version, "failure": type(failure).__name__}
        _LOG.error("adapter_not_staged", extra=facts, exc_info=failure)
    return PoolBusyError("The adapter cannot be staged by this replica now.")


def _release_late(staging: Future[StagedModel]) -> None:
    """Release what was staged for nobody."""
    if not staging.cancelled() and staging.exception() is None:
        staging.result().release()
