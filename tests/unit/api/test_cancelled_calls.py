"""Goal: a replica's word that a job was closed is told by what closed it."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from api.online.await_reply.open_call import OpenCall
from api.online.await_reply.running_call import RunningCall
from api.online.calls import PlannedCall
from topics.records.records import CallRef, JobRef, ReplyEnd

JOB = JobRef(
    job_id=UUID(int=1),
    day=0,
    tenant_id=UUID(int=2),
    model="m",
    model_version="1",
    pool="p",
    endpoint="/v1/completions",
    input_key="",
    deadline_s=0.0,
    call=CallRef("c", 0, durable=True),
)
WORD = ReplyEnd(409, b'{"error":{"message":"m","type":"t","param":null,"code":"cancelled"}}')
TIMEOUT_S = 10.0


@pytest.mark.parametrize(
    ("now_s", "status", "code"),
    [(9.9, 409, b"job_cancelled"), (10.0, 504, b"deadline_exceeded")],
)
async def test_a_job_that_ended_by_its_deadline_was_not_cancelled(
    now_s: float, status: int, code: bytes
) -> None:
    parsed: Any = SimpleNamespace(body=b"")
    unasked: Any = None
    planned = PlannedCall(UUID(int=1), unasked, parsed, unasked, JOB, TIMEOUT_S, None, 0.0)
    online: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_s=lambda: now_s))
    exchange: Any = SimpleNamespace(arrived_s=0.0)
    running = RunningCall(online, exchange, planned, unasked, [], None)
    call = OpenCall(JOB, now_s=0.0)
    call.end = WORD
    answer = await running._finished(call, wait_s=None)
    assert answer.status == status
    assert code in answer.body
