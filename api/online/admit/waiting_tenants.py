"""The calls that wait in batchers by tenant, of all API processes, from the `service` topic.

They include calls that have no connection here: those of other processes, those in the background,
and those whose client left.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from topics.records.records import ServiceReport

REPORT_S_MAX: Final = 3.0
"""Age of a batcher's report from which it does not count. A batcher reports each second."""

TENANTS_MAX: Final = 50_000
"""Tenants of one batcher that are counted, over all pools."""

_JOB_CLASS: Final = "interactive"


@dataclass(slots=True)
class WaitingCalls:
    """The calls of a pool that wait, by tenant."""

    calls: dict[UUID, int] = field(default_factory=dict)
    weights: dict[UUID, int] = field(default_factory=dict)
    call_sum: int = 0
    weight_sum: int = 0

    def weights_with(self, tenant_id: UUID, weight: int) -> int:
        """Return the sum of the weights of the tenants with calls, and of this one."""
        return self.weight_sum + (0 if tenant_id in self.weights else weight)

    def add(self, tenant_id: UUID, calls: int, weight: int) -> None:
        """Count the calls of a tenant at one batcher."""
        self.calls[tenant_id] = self.calls.get(tenant_id, 0) + calls
        self.call_sum += calls
        if tenant_id not in self.weights:
            self.weights[tenant_id] = weight
            self.weight_sum += weight


_Tenants = list[tuple[str, UUID, int, int]]  # pool, tenant, calls that wait, weight

_NONE: Final = WaitingCalls()


class WaitingTenants:
    """The newest report of each batcher. One thread calls `apply`, any thread may read."""

    def __init__(self) -> None:
        """No call is known to wait until the first report."""
        self._newest: dict[str, tuple[_Tenants, float]] = {}  # by batcher, with the time of receipt
        self._pools: dict[str, WaitingCalls] = {}  # replaced as a whole
        self._updated_s = 0.0

    def apply(self, reports: Iterable[ServiceReport], *, now_s: float) -> None:
        """Apply reports that arrived now, in the order of the log."""
        for report in reports:
            if report.job_class == _JOB_CLASS:
                self._newest[report.batcher_id] = _waiting(report), now_s
        self._newest = {
            batcher_id: (tenants, received_s)
            for batcher_id, (tenants, received_s) in self._newest.items()
            if now_s - received_s <= REPORT_S_MAX
        }
        pools: dict[str, WaitingCalls] = {}
        for tenants, _ in self._newest.values():
            for pool, tenant_id, calls, weight in tenants:
                pools.setdefault(pool, WaitingCalls()).add(tenant_id, calls, weight)
        self._pools, self._updated_s = pools, now_s

    def find(self, pool: str, *, now_s: float) -> WaitingCalls:
        """Return the calls that wait for a replica of a pool; none while that is not known."""
        pools = self._pools
        return pools.get(pool, _NONE) if now_s - self._updated_s <= REPORT_S_MAX else _NONE


def _waiting(report: ServiceReport) -> _Tenants:
    """Return the tenants of a report that wait. Older releases report no weight."""
    found = [
        (pool, tenant.tenant_id, tenant.waiting, max(1, tenant.weight))
        for pool, tenants in report.pools.items()
        for tenant in tenants
        if tenant.waiting > 0
    ]
    return found[:TENANTS_MAX]
