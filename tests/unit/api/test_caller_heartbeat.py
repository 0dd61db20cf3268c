"""Goal: heartbeats are published at intervals, and decisions at once."""

import asyncio
from dataclasses import dataclass, field

import pytest

from api.online.await_reply.caller_heartbeat import (
    IDS_MAX,
    LOST_S,
    CallerClock,
    CallerHeartbeatPublisher,
)
from api.online.send.call_sender import LogHealth
from core.ids import new_uuid
from core.limits import RECORD_BYTES_MAX
from tests.support.clock import ManualClock
from topics.clients.producer import OnDelivery
from topics.errors import DeliveryError, ProducerFatalError
from topics.records.codec import Headers, decode_value
from topics.records.records import CallerHeartbeat

WALL_S = 1e9


@dataclass
class Log:
    """Takes records; acknowledges when it is told to."""

    is_full: bool = False
    refusal: DeliveryError | None = None
    heartbeat: list[CallerHeartbeat] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    reports: list[OnDelivery] = field(default_factory=list)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        if self.is_full:
            raise DeliveryError
        if self.refusal is not None:
            raise self.refusal
        assert value is not None
        self.sizes.append(len(value))
        self.heartbeat.append(decode_value(CallerHeartbeat, value))
        assert on_delivery is not None
        self.reports.append(on_delivery)

    async def acknowledge(self) -> None:
        reports, self.reports = self.reports, []
        for report in reports:
            report(None)
        await turn()


async def turn() -> None:
    """Let the loop run what is due."""
    for _ in range(3):
        await asyncio.sleep(0)


def manual_clock() -> ManualClock:
    return ManualClock(100.0, WALL_S)


def publisher(log: Log, clock: ManualClock) -> tuple[CallerHeartbeatPublisher, LogHealth]:
    health = LogHealth(clock)
    return CallerHeartbeatPublisher(log, "me", CallerClock(clock), health), health


async def test_decisions_of_one_loop_turn_share_a_record() -> None:
    log = Log()
    heartbeat, _ = publisher(log, manual_clock())
    first, second, third = new_uuid(), new_uuid(), new_uuid()
    heartbeat.abort_call(first)
    heartbeat.abort_call(second)
    heartbeat.permit_rerun(third)
    assert log.heartbeat == []
    await turn()

    (said,) = log.heartbeat
    assert (said.aborted, said.permitted, said.leaving) == ([first, second], [third], False)


async def test_a_rejected_decision_is_sent_later() -> None:
    log = Log(is_full=True)
    heartbeat, health = publisher(log, manual_clock())
    request_id = new_uuid()
    heartbeat.abort_call(request_id)
    await turn()
    assert health.oldest_pending_s() == 0  # what was never queued is not owed

    log.is_full = False
    heartbeat.publish()
    assert log.heartbeat[0].aborted == [request_id]


@pytest.mark.parametrize("leaving", [False, True])
async def test_decisions_beyond_one_record_use_several(leaving: bool) -> None:
    log = Log()
    heartbeat, _ = publisher(log, manual_clock())
    ids = [new_uuid() for _ in range(2 * IDS_MAX + 1)]
    for request_id in ids:
        heartbeat.abort_call(request_id)
        heartbeat.permit_rerun(request_id)
    if leaving:
        heartbeat.publish(leaving=True)
    await turn()

    assert [len(said.aborted) for said in log.heartbeat] == [IDS_MAX, IDS_MAX, 1]
    assert [request_id for said in log.heartbeat for request_id in said.aborted] == ids
    assert [request_id for said in log.heartbeat for request_id in said.permitted] == ids
    assert [said.leaving for said in log.heartbeat] == [False, False, leaving]
    assert max(log.sizes) < RECORD_BYTES_MAX


async def test_decisions_are_sent_after_a_late_acknowledgement() -> None:
    log = Log()
    heartbeat, _ = publisher(log, manual_clock())
    for _ in range(100):
        heartbeat.publish()
    request_id = new_uuid()
    heartbeat.abort_call(request_id)
    await turn()
    assert log.heartbeat[-1].aborted == []
    await log.acknowledge()
    await turn()
    assert log.heartbeat[-1].aborted == [request_id]


async def test_an_adjusted_wall_clock_does_not_change_the_caller_clock() -> None:
    log, clock = Log(), manual_clock()
    heartbeat, _ = publisher(log, clock)
    heartbeat.publish()
    clock.now_s += 1.0
    clock.wall_time_s = WALL_S + 300.0
    heartbeat.publish()
    first, second = log.heartbeat
    assert first.now_s == WALL_S
    assert second.now_s - first.now_s == 1.0


async def test_unacknowledged_heartbeats_are_limited() -> None:
    log = Log()
    heartbeat, _ = publisher(log, manual_clock())
    for _ in range(100):
        heartbeat.publish()
    assert len(log.heartbeat) < 20
    await log.acknowledge()
    assert heartbeat.is_acknowledged

    heartbeat.publish(leaving=True)
    assert log.heartbeat[-1].leaving


async def test_missing_acknowledgements_are_reported() -> None:
    log, clock = Log(), manual_clock()
    heartbeat, health = publisher(log, clock)
    lost: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    beating = asyncio.create_task(heartbeat.run(lost.set_result))
    await turn()
    await log.acknowledge()
    clock.now_s += LOST_S
    heartbeat.publish()
    clock.now_s += 0.1
    assert health.oldest_pending_s() > 0
    assert await asyncio.wait_for(lost, 5) == clock.now_s
    beating.cancel()


async def test_a_fatal_producer_error_ends_the_heartbeat() -> None:
    """By what it says at once, or of a record that it took."""
    for at_once in (True, False):
        log = Log()
        heartbeat, _ = publisher(log, manual_clock())
        beating = asyncio.create_task(heartbeat.run(lambda _: None))
        await turn()
        fatal = ProducerFatalError("out of order")
        if at_once:
            log.refusal = fatal
        else:
            log.reports[0](fatal)
        with pytest.raises(ProducerFatalError):
            await asyncio.wait_for(beating, 5)
