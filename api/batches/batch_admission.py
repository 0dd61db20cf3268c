"""Admission of new batches by the load of their pool, in the order of `core.overload.shedding`.

    refused while   predicted wait of the pool's calls > the limit of the batch's class
    or              backlog of the pool > MILLRACE_API_BULK_BACKLOG_S_MAX, if that is set

    backlog = items of open batches without a row / measured items a second

A tenant above its weighted share of the backlog is over its quota. Batches that were admitted are
never dropped: their items wait.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from fastapi import Depends, Request

from api import metrics
from api.auth.authentication import TenantRequest
from api.files.first_line import FIRST_LINE_BYTES, first_model
from api.http.errors import ApiError
from api.online.call_errors import queue_full
from api.online.online_runtime import OnlineRuntime
from api.runtime.object_threads import run_in_store_thread
from api.settings import ApiSettings
from api.views.job_estimates import JobEstimates
from core.errors import MillraceError
from core.overload.shedding import (
    CallQueue,
    ShedClass,
    SheddingLimits,
    admission_s,
    backlog_limit_s,
    is_over_share,
    is_shed,
    retry_after_s,
)
from jobs.errors import UploadedFileNotFoundError
from jobs.estimates.job_eta import PoolSnapshot
from jobs.estimates.pool_rates import PoolState
from jobs.store.files import find_file
from storage.objects.object_store import read_object

_LOG = logging.getLogger(__name__)

WAKE_S_MAX: Final = 1.0
"""Time to find out which pool a new batch wakes. The backlog wakes it a little later anyway."""

_UNKNOWN: Final = PoolSnapshot(PoolState(), None, {})


class _BatchWait(NamedTuple):
    """How long a batch is refused."""

    shed_class: ShedClass
    seconds: float


@dataclass(frozen=True, slots=True)
class BatchAdmission:
    """Admits or refuses the new batches of one process."""

    online: OnlineRuntime
    estimates: JobEstimates
    backlog_s_max: float | None  # None: the backlog refuses nothing

    async def refusal(
        self, request: TenantRequest, input_file_id: UUID | None, endpoint: str
    ) -> ApiError | None:
        """Return why a batch is refused, 429 or 503, or None when it is admitted.

        The model is that of the first line of its file, which is read only while a pool that
        serves `endpoint` is under load. A batch whose model is not known from there, such as one
        with a long first line, is refused if each of these pools would refuse it; else its
        validation decides. No failure of a look-up refuses a batch.
        """
        try:
            serving = self.online.models.serving(endpoint, request.tenant_id)
            pools = sorted({*serving.values()})
            loaded = [pool for pool in pools if await self._is_loaded(pool)]
            start = await _start_of_file(request, input_file_id) if loaded else None
            if start is None:
                return None
            pool = serving.get(first_model(start) or "")
            asked = pools if pool is None else [pool]
            if not {*asked} <= {*loaded}:
                return None
            return self._least([await self._wait(request, one) for one in asked])
        except MillraceError as failure:
            _LOG.warning("a batch was admitted unchecked", extra={"code": failure.code})
            return None

    async def wake(self, request: TenantRequest, input_file_id: UUID | None, endpoint: str) -> None:
        """Tell the autoscaler of a new batch whose pool has no replica; failures do not matter.

        Its file is read only while a pool that serves `endpoint` has none, within `WAKE_S_MAX`.
        """
        online = self.online
        if not online.wakes.has_autoscaler:
            return
        now_s = online.clock.monotonic_s()
        serving = online.models.serving(endpoint, request.tenant_id)
        if not any(online.sleeping.is_asleep(pool, now_s=now_s) for pool in {*serving.values()}):
            return
        with suppress(MillraceError, ApiError, TimeoutError):
            async with asyncio.timeout(WAKE_S_MAX):
                start = await _start_of_file(request, input_file_id)
            pool = serving.get(first_model(start or b"") or "")
            if pool is not None and online.sleeping.is_asleep(pool, now_s=now_s):
                online.wake_requests.note_batch(pool)

    async def _is_loaded(self, pool: str) -> bool:
        """Whether the pool would refuse the class that is shed first."""
        over_quota = ShedClass.OVER_QUOTA_BULK
        if self._is_shed(pool, over_quota):
            return True
        if self.backlog_s_max is None:
            return False
        backlog_s = _backlog_s(await self._snapshot(pool))
        metrics.BULK_BACKLOG_SECONDS.labels(pool).set(backlog_s)
        return backlog_s > backlog_limit_s(over_quota, self.backlog_s_max, self._limits)

    def _least(self, waits: Sequence[_BatchWait | None]) -> ApiError | None:
        """Return the refusal with the shortest wait; None if a pool admits the batch."""
        refusing = [wait for wait in waits if wait is not None]
        if not refusing or len(refusing) < len(waits):
            return None
        least = min(refusing, key=lambda wait: wait.seconds)
        metrics.OVERLOAD_REFUSED.labels(least.shed_class.label).inc()
        s_max = self.online.settings.retry_after_s_max
        return batch_refusal(least.shed_class, least.seconds, s_max=s_max)

    async def _wait(self, request: TenantRequest, pool: str) -> _BatchWait | None:
        """Return how long a batch of a pool is refused; None when it is admitted."""
        snapshot = await self._snapshot(pool)
        shed_class = _shed_class(request, snapshot)
        waits_s = []
        if self._is_shed(pool, shed_class):
            limit_s = self._limits.wait_limit_s(shed_class)
            waits_s.append(admission_s(self._queue(pool), shed_class, limit_s))
        if self.backlog_s_max is not None:
            limit_s = backlog_limit_s(shed_class, self.backlog_s_max, self._limits)
            if (backlog_s := _backlog_s(snapshot)) > limit_s:
                waits_s.append(backlog_s - limit_s)
        return _BatchWait(shed_class, max(waits_s)) if waits_s else None

    async def _snapshot(self, pool: str) -> PoolSnapshot:
        return await self.estimates.pool_snapshot(pool) or _UNKNOWN

    @property
    def _limits(self) -> SheddingLimits:
        return self.online.admission.limits

    def _queue(self, pool: str) -> CallQueue:
        return self.online.admission.queue(pool, now_s=self.online.clock.monotonic_s())

    def _is_shed(self, pool: str, shed_class: ShedClass) -> bool:
        return is_shed(self._queue(pool), shed_class, self._limits.wait_limit_s(shed_class))


def batch_refusal(shed_class: ShedClass, wait_s: float, *, s_max: int) -> ApiError:
    """Return the refusal of a batch; its message tells the whole wait, the header at most `s_max`.

    429: the tenant has more than its share of the pool's work. 503: the pool has too much.
    """
    is_over = shed_class is ShedClass.OVER_QUOTA_BULK
    reason = (
        "The model is overloaded, and your organization has more than its share of its work."
        if is_over
        else "The model is overloaded."
    )
    message = f"{reason} A new batch is expected to be accepted in about {ceil(wait_s)} s."
    return queue_full(429 if is_over else 503, message, retry_after_s(wait_s, s_max=s_max))


def _shed_class(request: TenantRequest, pool: PoolSnapshot) -> ShedClass:
    own = pool.sums.get(request.tenant_id)
    weight = request.principal.weight
    others = [one for tenant_id, one in pool.sums.items() if tenant_id != request.tenant_id]
    rate = pool.state.rate
    is_over = is_over_share(
        0.0 if own is None else own.remaining,
        sum(one.remaining for one in pool.sums.values()),
        weight=weight,
        weights=weight + sum(one.weight for one in others if one.remaining),
        capacity=0.0 if rate is None else rate.concurrency,
    )
    return ShedClass.OVER_QUOTA_BULK if is_over else ShedClass.BULK


def _backlog_s(pool: PoolSnapshot) -> float:
    """Return the seconds of work of a pool's open batches; 0 while its rate is not known."""
    rate = pool.state.rate
    if rate is None:
        return 0.0
    return sum(one.remaining for one in pool.sums.values()) / rate.work_per_s


async def _start_of_file(request: TenantRequest, input_file_id: UUID | None) -> bytes | None:
    """Return the start of a file; None if there is no such file."""

    def key_of(connection: sa.Connection, tenant_id: UUID) -> str | None:
        with suppress(UploadedFileNotFoundError):
            return str(find_file(connection, tenant_id, input_file_id).object_key)
        return None

    key = await request.run(key_of)
    if key is None:
        return None
    request.services.object_threads.require_capacity()
    objects = request.services.objects
    return await run_in_store_thread(read_object, objects, key, length=FIRST_LINE_BYTES)


def create_batch_admission(
    online: OnlineRuntime | None, estimates: JobEstimates, settings: ApiSettings
) -> BatchAdmission | None:
    """Return the admission of a process; None for one without online calls, which knows no load."""
    if online is None:
        return None
    return BatchAdmission(online, estimates, settings.bulk_backlog_s_max)


async def batch_admission(request: Request) -> BatchAdmission | None:
    """Return the admission of the application; None: it serves no online calls."""
    admission: BatchAdmission | None = request.app.state.batch_admission
    return admission


BatchAdmissionDep = Annotated[BatchAdmission | None, Depends(batch_admission)]
