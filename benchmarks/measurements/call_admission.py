"""CPU that the admission of one online call costs the API process.

What: microseconds of one `CallAdmission.check`, in the process.

How: a pool of 100 slots in which calls take a second. `idle`: no call waits. `queue`: calls wait
for 10 s. `near the limit`: they wait for 100 s of 120, and 1,000 refused calls have a promise. The
call has a body of 4 KiB. The shortest mean of five runs counts.

Goal: at most 5 µs, and 20 µs near the limit, where most calls are refused anyway.
"""

import time
from datetime import UTC, datetime
from typing import Final

from api.online.admit.admission import ExecutionTimes, PoolStates
from api.online.admit.call_admission import CallAdmission
from api.online.admit.pool_demand import PoolDemand
from api.online.admit.waiting_tenants import WaitingTenants
from api.online.await_reply.open_calls import OpenCall, OpenCalls
from api.online.calls import ParsedCall, PlannedCall
from api.online.settings import OnlineSettings
from benchmarks.runs import Report, Row, Setup
from core.bodies.token_estimates import requested_tokens
from core.ids import new_uuid
from core.overload.retry_promises import Client
from core.overload.shedding import ShedClass
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import CallRef, Capacity, JobRef

CALLS, QUICK_CALLS = 100_000, 1_000
REPEATS: Final = 5
SLOTS: Final = 100
WAITS_S: Final = {"idle": 0, "queue": 10, "near the limit": 100}
PROMISES: Final = 1_000
ENDPOINT: Final = "/v1/chat/completions"
POOL: Final = "p"
TENANT: Final = Principal(new_uuid(), new_uuid())
OTHER: Final = Principal(new_uuid(), new_uuid())


def measure(setup: Setup) -> Report:
    """Run the benchmark; `--items` replaces the number of calls."""
    count = setup.count(CALLS, QUICK_CALLS)
    rows = []
    for name, wait_s in WAITS_S.items():
        admission, call = loaded_admission(wait_s), planned_call(TENANT)
        taken_s = []
        for _ in range(REPEATS):
            started_s = time.perf_counter()
            for _ in range(count):
                admission.check(call, now_s=0.0)
            taken_s.append(time.perf_counter() - started_s)
        goal = "<= 20" if name == "near the limit" else "<= 5"
        metric = f"admission of a call, {name}"
        rows.append(Row(metric=metric, unit="µs", ours=min(taken_s) / count * 1e6, goal=goal))
        setup.note(f"{metric}: {rows[-1].ours:.2f} µs")
    return Report(name="call_admission", rows=rows)


def loaded_admission(wait_s: int) -> CallAdmission:
    """Return the admission of a process whose calls wait for so long, all of another tenant."""
    calls, pools, execution = (
        OpenCalls(buffer_bytes_max=1),
        PoolStates(since_s=0.0),
        ExecutionTimes(),
    )
    capacity = Capacity("r", 1, POOL, "interactive", [0], {}, 0.0, SLOTS)
    value, headers = encode(capacity), kind_headers(Capacity)
    pools.apply_records([ReceivedRecord("capacity", 0, 0, b"r", headers, value, 0)], now_s=0.0)
    execution.add(POOL, 1.0)
    for _ in range(SLOTS * (wait_s + 1) if wait_s else 1):
        calls.add(OpenCall(planned_call(OTHER).job, now_s=0.0))
    settings = OnlineSettings(open_calls_max=1_000_000, open_calls_per_tenant_max=1_000_000)
    admission = CallAdmission(settings, calls, pools, PoolDemand(), WaitingTenants(), execution)
    for number in range(PROMISES if wait_s == max(WAITS_S.values()) else 0):
        client = Client(OTHER.tenant_id, number)
        admission.promises.add(POOL, client, ShedClass.INTERACTIVE, due_s=60.0)
    return admission


def planned_call(principal: Principal) -> PlannedCall:
    """Return a call of a tenant."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"x" * 4_000)
    route = ModelVersion("m", "1", POOL, "simulated", (ENDPOINT,), datetime.now(UTC))
    job = JobRef(
        job_id=new_uuid(), day=0, tenant_id=principal.tenant_id, model="m", model_version="1",
        pool=POOL, endpoint=ENDPOINT, input_key="", deadline_s=0.0, call=CallRef("c", 0),
    )  # fmt: skip
    requested = requested_tokens(ENDPOINT, body)
    parsed = ParsedCall(ENDPOINT, body, "m", False, None, None, False, requested)
    return PlannedCall(job.job_id, principal, parsed, route, job, 600.0, None, 0.0)
