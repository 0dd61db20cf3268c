"""Admission of calls by predicted wait, in the shedding order of `core.overload.shedding`.

    waiting   = max(own open calls - slots of the pool, calls that wait in batchers)
    rate      = max(measured calls a second, slots / recent execution time)
    predicted wait = waiting / rate

A tenant is over its quota while it has more calls in the pool than its weighted share: calls that
are open here, or calls that wait in batchers if these are more. The latter may have no connection.
"""

from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from api import metrics as api_metrics
from api.http.errors import ApiError
from api.online import metrics
from api.online.admit.admission import ExecutionTimes, PoolStates
from api.online.admit.pool_demand import PoolDemand
from api.online.admit.waiting_tenants import WaitingTenants
from api.online.await_reply.open_calls import OpenCalls
from api.online.call_errors import queue_full
from api.online.calls import PlannedCall
from api.online.settings import OnlineSettings
from core.overload.admission_control import AdmissionControl, AdmissionRequest
from core.overload.retry_promises import Client, RetryPromises
from core.overload.shedding import (
    PROMISED_PART_MAX,
    CallQueue,
    ShedClass,
    SheddingLimits,
    is_over_share,
)
from jobs.expansion.windows import PoolCapacity

Request: TypeAlias = AdmissionRequest[UUID]
"""A call of a tenant. Its client is the tenant and a hash of its body: a retry has the same."""

_HASHED_BYTES: Final = 2048  # of each end of a body


class PoolForecast(NamedTuple):
    """The predicted wait of a new call in a pool, and whether the call would be refused."""

    wait_s: float
    is_refused: bool


class OverloadedError(ApiError):
    """A call is refused because of the predicted wait. `CallAdmission.refuse` tells the client."""

    def __init__(self) -> None:
        message, kind = "The model is overloaded.", "service_unavailable_error"
        headers = {"retry-after": "5"}
        super().__init__(503, message, kind=kind, code="queue_full", headers=headers)


class CallAdmission:
    """Admits or refuses the calls of one process. All methods run on the event loop."""

    def __init__(
        self,
        settings: OnlineSettings,
        calls: OpenCalls,
        pools: PoolStates,
        demand: PoolDemand,
        waiting: WaitingTenants,
        execution: ExecutionTimes,
    ) -> None:
        """`pools`, `demand`, `waiting` and `execution` are read at each call."""
        self._settings, self._calls = settings, calls
        self._pools, self._demand, self._execution = pools, demand, execution
        self._waiting = waiting
        self.limits = SheddingLimits(settings.predicted_wait_s_max, settings.shed_ratios)
        over_quota_s = self.limits.wait_limit_s(ShedClass.OVER_QUOTA_INTERACTIVE)
        self._unchecked_s = over_quota_s * PROMISED_PART_MAX
        self._control = AdmissionControl[UUID](
            self.limits,
            retry_after_s_max=settings.retry_after_s_max,
            grace_s=settings.retry_grace_s,
            promises_max=settings.retry_promises_max,
        )

    def queue(self, pool: str, *, now_s: float) -> CallQueue:
        """Return the calls that wait at a pool; none while its capacity is not known."""
        capacity = self._pools.find(pool)
        if capacity is None:
            return CallQueue(0, 0.0)
        own = self._calls.count_by_pool[pool]
        in_batchers = self._demand.waiting(pool, now_s=now_s)
        waiting = max(own - capacity.concurrency, in_batchers)
        if waiting <= 0:
            return CallQueue(0, 0.0)
        per_s = service_rate(capacity, self._execution.seconds(pool))
        part = max(1, own) / max(1, own, capacity.concurrency + in_batchers)
        return self._control.queue(pool, waiting, per_s, part=part, now_s=now_s)

    @property
    def promises(self) -> RetryPromises[UUID]:
        """The places that refused calls of this process were promised."""
        return self._control.promises

    def has_capacity(self, pool: str) -> bool:
        """Whether a replica of the pool accepts calls."""
        return self._pools.find(pool) is not None

    def forecast(self, call: PlannedCall, *, now_s: float) -> PoolForecast | None:
        """Return the forecast of the call's pool; None if no call waits. Changes nothing."""
        queue = self.queue(call.route.pool, now_s=now_s)
        if queue.per_s <= 0:
            return None
        is_refused = self._control.is_refused(self._state(call, now_s), queue, now_s=now_s)
        return PoolForecast(queue.wait_s, is_refused)

    def check(self, call: PlannedCall, *, now_s: float) -> None:
        """Raise ApiError for a call that is not admitted. An admitted one uses its promise.

        429 or 503: the tenant or the process has too many calls open. OverloadedError: the pool is
        overloaded; when that is to be told to the client, call `refuse`.
        """
        settings, calls = self._settings, self._calls
        if calls.count_by_tenant[call.principal.tenant_id] >= settings.open_calls_per_tenant_max:
            raise queue_full(429, "Your organization has too many calls open.", 1.0)
        if calls.count >= settings.open_calls_max:
            raise queue_full(503, "Too many calls are open.", 1.0)
        queue = self.queue(call.route.pool, now_s=now_s)
        limit_s = min(self._unchecked_s, _limit_s(call) * PROMISED_PART_MAX)
        # below it both classes are admitted, whatever was promised
        if queue.wait_s > limit_s and self._control.is_refused(
            self._state(call, now_s), queue, now_s=now_s
        ):
            raise OverloadedError
        if self.promises.count:
            self._control.use_due(call.route.pool, _client(call), now_s=now_s)

    def refuse(self, call: PlannedCall, *, now_s: float) -> ApiError:
        """Return the refusal of a call by an overloaded pool, and promise the call a place.

        429: the tenant uses more than its share of the pool; else 503.
        """
        queue, state = self.queue(call.route.pool, now_s=now_s), self._state(call, now_s)
        # calls may have ended since the check: then the call is admitted in a moment
        retry_s = self._control.refuse(state, queue, now_s=now_s) if queue.per_s > 0 else 1
        api_metrics.OVERLOAD_REFUSED.labels(state.shed_class.label).inc()
        return _refusal(state, self.limits, retry_s)

    def publish_metrics(self, *, now_s: float) -> None:
        """Set the gauges, and end unused promises, which no call may do once the load is gone.

        It is called a few times a second, so that calls do not pay for it.
        """
        self.promises.end_unused(now_s)
        for pool in list(self._calls.count_by_pool):
            metrics.PREDICTED_WAIT_SECONDS.labels(pool).set(self.queue(pool, now_s=now_s).wait_s)
        metrics.RETRY_PROMISES.set(self.promises.count)

    def _state(self, call: PlannedCall, now_s: float) -> Request:
        pool, principal = call.route.pool, call.principal
        tenant_id, weight = principal.tenant_id, principal.weight
        capacity, usage = self._pools.find(pool), self._calls.usage
        concurrency = 0 if capacity is None else capacity.concurrency
        elsewhere = self._waiting.find(pool, now_s=now_s)
        of_all = self._calls.count_by_pool[pool]
        if elsewhere.call_sum:
            of_all = max(of_all, elsewhere.call_sum + concurrency)
        weights = max(
            usage.weights(pool, tenant_id, weight), elsewhere.weights_with(tenant_id, weight)
        )
        is_over = is_over_share(
            max(usage.call_count(pool, tenant_id), elsewhere.calls.get(tenant_id, 0)),
            of_all,
            weight=weight,
            weights=weights,
            capacity=concurrency,
        )
        shed_class = ShedClass.OVER_QUOTA_INTERACTIVE if is_over else ShedClass.INTERACTIVE
        share = weight / (weights + weight)  # one more tenant finds places, too
        return AdmissionRequest(pool, _client(call), shed_class, _limit_s(call), share)


def service_rate(pool: PoolCapacity, execution_s: float) -> float:
    """Return the calls that a pool completes in a second while calls wait; 0 while unknown.

    The measured rate is low when the pool had little to do, so the slots divided by the recent
    execution time count if they give more. `execution_s` is 0 while it is not known.
    """
    if execution_s <= 0:
        return 0.0
    return max(pool.items_per_s, pool.concurrency / execution_s)


def _limit_s(call: PlannedCall) -> float:
    """Return how long the call may wait for its execution."""
    return call.queue_timeout_s or call.timeout_s


def _client(call: PlannedCall) -> Client[UUID]:
    body = call.parsed.client_body or call.parsed.body
    ends = (len(body), body[:_HASHED_BYTES], body[-_HASHED_BYTES:])
    return Client(call.principal.tenant_id, hash(ends))


def _refusal(state: Request, limits: SheddingLimits, retry_s: int) -> ApiError:
    is_over = state.shed_class is ShedClass.OVER_QUOTA_INTERACTIVE
    if state.limit_s < limits.wait_limit_s(state.shed_class):
        message = "The call would not be served in time."
    elif is_over:
        message = "The model is overloaded, and your organization uses more than its share of it."
    else:
        message = "The model is overloaded."
    return queue_full(429 if is_over else 503, message, retry_s)
