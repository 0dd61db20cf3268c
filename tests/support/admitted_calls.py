"""Call admission over a pool that a test describes, and calls that ask for it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec

from api.http.errors import ApiError
from api.online.admit.admission import ExecutionTimes, PoolStates
from api.online.admit.call_admission import CallAdmission, OverloadedError
from api.online.admit.pool_demand import PoolDemand
from api.online.admit.pool_wakes import PoolWakes
from api.online.admit.sleeping_pools import SleepingPools
from api.online.admit.waiting_tenants import WaitingTenants
from api.online.await_reply.open_calls import OpenCall, OpenCalls
from api.online.calls import ParsedCall, PlannedCall
from api.online.exchange import Exchange
from api.online.memory_limits import BodyReservation, body_memory_limit
from api.online.settings import OnlineSettings
from core.bodies.token_estimates import requested_tokens
from core.ids import new_uuid
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock
from tests.support.online_calls import call_job

CHAT = "/v1/chat/completions"
CONCURRENCY = 4
"""Of the pool: that of the records of `capacity_record`."""


def model_version(name: str, pool: str, endpoint: str = CHAT) -> ModelVersion:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    return ModelVersion(name, "1", pool, "simulated", (endpoint,), created)


def planned_call(
    principal: Principal,
    *,
    body: bytes = b"{}",
    route: ModelVersion | None = None,
    endpoint: str = CHAT,
    timeout_s: float = 600.0,
    background: bool = False,
) -> PlannedCall:
    """Return a call as it is planned."""
    route = route or model_version("large", "p", endpoint)
    job = msgspec.structs.replace(
        call_job(tenant_id=principal.tenant_id, endpoint=endpoint),
        pool=route.pool,
        model=route.name,
        weight=principal.weight,
    )
    parsed = ParsedCall(
        endpoint,
        body,
        route.name,
        False,
        None,
        None,
        background,
        requested_tokens(endpoint, body),
    )
    return PlannedCall(job.job_id, principal, parsed, route, job, timeout_s, None, 0.0)


def call_exchange(
    principal: Principal, *, body_bytes_max: int = 1 << 20, **headers: str
) -> Exchange:
    """Return the request of a call: its headers, and memory for bodies of `body_bytes_max`."""
    named = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    reservation = BodyReservation(body_memory_limit(body_bytes_max, body_bytes_max=body_bytes_max))
    reservation.assign_tenant(principal.tenant_id)
    exchange: Any = SimpleNamespace(
        request_id=new_uuid(),
        endpoint=CHAT,
        headers=named,
        text=lambda _: None,
        arrived_s=0.0,
        body_reservation=reservation,
    )
    return exchange  # type: ignore[no-any-return]


def tenant(weight: int = 1, **fields: Any) -> Principal:
    return Principal(new_uuid(), new_uuid(), weight=weight, **fields)


@dataclass
class AdmissionSite:
    """Pools of four slots in which calls take a second: four calls end in a second."""

    settings: OnlineSettings = field(default_factory=OnlineSettings)
    pool_names: tuple[str, ...] = ("p",)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.calls = OpenCalls(buffer_bytes_max=1)
        self.pools = PoolStates(since_s=0.0)
        self.demand = PoolDemand()
        self.waiting = WaitingTenants()
        self.execution = ExecutionTimes()
        records = [
            capacity_record(f"r-{name}", 0.0, pool=name, job_class="interactive")
            for name in self.pool_names
        ]
        self.pools.apply_records(records, now_s=0.0)
        for name in self.pool_names:
            self.execution.add(name, 1.0)
        self.wakes, self.noted = PoolWakes(self.clock), list[str]()
        self.sleeping = SleepingPools(self.settings, self.pools, self.wakes, self.noted.append)
        self.admission = CallAdmission(
            self.settings, self.calls, self.pools, self.demand, self.waiting, self.execution
        )

    def open(self, principal: Principal, count: int, pool: str = "p") -> list[OpenCall]:
        """Open calls of a tenant."""
        opened = []
        for _ in range(count):
            job = call_job(tenant_id=principal.tenant_id)
            job = msgspec.structs.replace(job, pool=pool, weight=principal.weight)
            opened.append(OpenCall(job, now_s=0.0))
            self.calls.add(opened[-1])
        return opened

    def close(self, opened: list[OpenCall]) -> None:
        for call in opened:
            self.calls.remove(call)

    def refusal(self, call: PlannedCall) -> ApiError | None:
        """Return why a call is refused now."""
        now_s = self.clock.monotonic_s()
        try:
            self.admission.check(call, now_s=now_s)
        except OverloadedError:
            return self.admission.refuse(call, now_s=now_s)
        except ApiError as error:
            return error
        return None


def retry_after(error: ApiError | None) -> int:
    assert error is not None
    assert error.headers is not None
    return int(error.headers["retry-after"])
