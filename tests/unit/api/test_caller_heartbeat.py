"""Goal: heartbeats are published at intervals, and decisions at once."""

import asyncio
from typing import Any

import pytest

from api.online.await_reply.caller_heartbeat import (
    IDS_MAX,
    LOST_S,
    CallerClock,
    CallerHeartbeatPublisher,
)
from api.online.send.call_sender import CALLERS_PLACE, LogHealth
from core.ids import new_uuid
from core.limits import RECORD_BYTES_MAX
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from topics.clients.producer import OnDelivery
from topics.errors import DeliveryError, ProducerFatalError
from topics.records.codec import decode_value
from topics.records.records import CallerHeartbeat

WALL_S = 1e9


class Log(SentRecords):
    """Takes records; acknowledges when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: DeliveryError | None = None
        self.reports: list[OnDelivery] = []

    def send(self, topic: str, value: bytes | None, **options: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        super().send(topic, value, **options)
        self.reports.append(options["on_delivery"])

    @property
    def heartbeats(self) -> list[CallerHeartbeat]:
        return [decode_value(CallerHeartbeat, record.value) for record in self.records]

    async def acknowledge(self) -> None:
        reports, self.reports = self.reports, []
        for report in reports:
            report(None)
        await turn()


async def turn() -> None:
    """Let the loop run what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0, WALL_S)


@pytest.fixture
def health(clock: ManualClock) -> LogHealth:
    return LogHealth(clock)


@pytest.fixture
def heartbeat(log: Log, clock: ManualClock, health: LogHealth) -> CallerHeartbeatPublisher:
    return CallerHeartbeatPublisher(log, "me", CallerClock(clock), health)


async def test_decisions_of_one_loop_turn_share_a_record(
    log: Log, heartbeat: CallerHeartbeatPublisher
) -> None:
    first, second, third = new_uuid(), new_uuid(), new_uuid()
    heartbeat.abort_call(first)
    heartbeat.abort_call(second)
    heartbeat.permit_rerun(third)
    assert log.heartbeats == []
    await turn()

    (said,) = log.heartbeats
    assert (said.aborted, said.permitted, said.leaving) == ([first, second], [third], False)


async def test_a_rejected_decision_is_sent_later(
    log: Log, heartbeat: CallerHeartbeatPublisher, health: LogHealth
) -> None:
    log.refusal = DeliveryError()
    request_id = new_uuid()
    heartbeat.abort_call(request_id)
    await turn()
    assert health.oldest_pending_s(CALLERS_PLACE) == 0  # what was never queued is not owed

    log.refusal = None
    heartbeat.publish()
    assert log.heartbeats[0].aborted == [request_id]


@pytest.mark.parametrize("leaving", [False, True])
async def test_decisions_beyond_one_record_use_several(
    leaving: bool, log: Log, heartbeat: CallerHeartbeatPublisher
) -> None:
    ids = [new_uuid() for _ in range(2 * IDS_MAX + 1)]
    for request_id in ids:
        heartbeat.abort_call(request_id)
        heartbeat.permit_rerun(request_id)
    if leaving:
        heartbeat.publish(leaving=True)
    await turn()

    assert [len(said.aborted) for said in log.heartbeats] == [IDS_MAX, IDS_MAX, 1]
    assert [request_id for said in log.heartbeats for request_id in said.aborted] == ids
    assert [request_id for said in log.heartbeats for request_id in said.permitted] == ids
    assert [said.leaving for said in log.heartbeats] == [False, False, leaving]
    assert max(len(record.value) for record in log.records) < RECORD_BYTES_MAX


async def test_decisions_are_sent_after_a_late_acknowledgement(
    log: Log, heartbeat: CallerHeartbeatPublisher
) -> None:
    for _ in range(100):
        heartbeat.publish()
    request_id = new_uuid()
    heartbeat.abort_call(request_id)
    await turn()
    assert log.heartbeats[-1].aborted == []
    await log.acknowledge()
    await turn()
    assert log.heartbeats[-1].aborted == [request_id]


async def test_an_adjusted_wall_clock_does_not_change_the_caller_clock(
    log: Log, clock: ManualClock, heartbeat: CallerHeartbeatPublisher
) -> None:
    heartbeat.publish()
    clock.now_s += 1.0
    clock.wall_time_s = WALL_S + 300.0
    heartbeat.publish()
    first, second = log.heartbeats
    assert first.now_s == WALL_S
    assert second.now_s - first.now_s == 1.0


async def test_unacknowledged_heartbeats_are_limited(
    log: Log, heartbeat: CallerHeartbeatPublisher
) -> None:
    for _ in range(100):
        heartbeat.publish()
    assert len(log.heartbeats) < 20
    await log.acknowledge()
    assert heartbeat.is_acknowledged

    heartbeat.publish(leaving=True)
    assert log.heartbeats[-1].leaving


async def test_missing_acknowledgements_are_reported(
    log: Log, clock: ManualClock, heartbeat: CallerHeartbeatPublisher, health: LogHealth
) -> None:
    lost: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    beating = asyncio.create_task(heartbeat.run(lost.set_result))
    await turn()
    await log.acknowledge()
    clock.now_s += LOST_S
    heartbeat.publish()
    clock.now_s += 0.1
    assert health.oldest_pending_s(CALLERS_PLACE) > 0
    assert await asyncio.wait_for(lost, 20) == clock.now_s
    beating.cancel()


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_fatal_producer_error_ends_the_heartbeat(
    log: Log, heartbeat: CallerHeartbeatPublisher, at_once: bool
) -> None:
    """At once, or when a record that was accepted is not delivered."""
    beating = asyncio.create_task(heartbeat.run(lambda _: None))
    await turn()
    fatal = ProducerFatalError("out of order")
    if at_once:
        log.refusal = fatal
    else:
        log.reports[0](fatal)
    with pytest.raises(ProducerFatalError):
        await asyncio.wait_for(beating, 20)
