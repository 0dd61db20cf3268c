"""Goal: a redelivered call runs only with the permission of its caller, given in time."""

import asyncio
from uuid import UUID

import pytest

from gpu_consumers.online.call_execution import CompletedCalls
from gpu_consumers.quarantine import redelivered_calls
from gpu_consumers.quarantine.redelivered_calls import REQUESTS_MAX, RerunPermissions
from tests.unit.gpu_consumers.fakes import run_loop
from topics.records.records import CallRef

CALLER = CallRef("c1", 3)
ID, OTHER_ID = UUID(int=1), UUID(int=2)


class PermissionRequests:
    """Collects requests for permission and acknowledges them, at once or when a test does."""

    def __init__(self, *, acknowledges: bool = True) -> None:
        self._acknowledges = acknowledges
        self.sent: list[UUID] = []
        self._unacknowledged: list[asyncio.Future[None]] = []

    def send(self, _: CallRef, request_id: UUID) -> asyncio.Future[None]:
        self.sent.append(request_id)
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unacknowledged.append(acknowledged)
        if self._acknowledges:
            self.acknowledge()
        return acknowledged

    def acknowledge(self) -> None:
        for acknowledged in self._unacknowledged:
            acknowledged.set_result(None)
        self._unacknowledged.clear()


async def test_a_permitted_call_may_run() -> None:
    requests = PermissionRequests()
    permissions = RerunPermissions(requests.send)
    waiting = asyncio.create_task(permissions.request_rerun(CALLER, ID))
    await run_loop()
    permissions.grant([OTHER_ID, ID, ID])

    assert await waiting
    assert requests.sent == [ID]


async def test_a_request_without_an_answer_is_repeated_and_then_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivered_calls, "PERMISSION_S_MAX", 0.001)
    requests = PermissionRequests()
    permissions = RerunPermissions(requests.send)
    assert not await permissions.request_rerun(CALLER, ID)
    assert requests.sent == [ID] * REQUESTS_MAX
    permissions.grant([ID])


async def test_the_time_limit_starts_with_the_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redelivered_calls, "PERMISSION_S_MAX", 0.0)
    requests = PermissionRequests(acknowledges=False)
    permissions = RerunPermissions(requests.send)
    waiting = asyncio.create_task(permissions.request_rerun(CALLER, ID))
    await run_loop(1000)
    assert (waiting.done(), requests.sent) == (False, [ID])
    requests.acknowledge()
    await run_loop(3)
    permissions.grant([ID])
    assert await waiting


async def test_a_permission_before_the_acknowledgement_counts() -> None:
    permissions = RerunPermissions(PermissionRequests(acknowledges=False).send)
    waiting = asyncio.create_task(permissions.request_rerun(CALLER, ID))
    await run_loop()
    permissions.grant([ID])
    assert await waiting


def test_completed_calls_are_remembered_up_to_a_limit() -> None:
    completed = CompletedCalls(count_max=2)
    for number in (1, 2, 3):
        completed.add(UUID(int=number))
    assert [UUID(int=number) in completed for number in (1, 2, 3)] == [False, True, True]
