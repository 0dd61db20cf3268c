"""Goal: an unavailable partition refuses no call that another partition can take."""

import gc
from uuid import UUID

import pytest

from api.http.errors import ApiError
from api.online.await_reply.open_calls import OpenCall
from api.online.call_errors import log_unavailable
from api.online.send.call_sender import CALLERS_PLACE, CallSender, LogHealth, call_item
from core.bodies.token_estimates import TokenEstimate
from core.ids import new_uuid
from tests.support.clock import ManualClock
from tests.support.online_calls import call_job
from tests.support.recording_sender import SentRecords
from topics.records.catalogue import REQUESTS_INTERACTIVE
from topics.records.partitioner import shuffle_shard

PATIENCE_S = 2.0
TENANT = UUID(int=7)


class Site:
    """A sender of calls of one tenant, whose shard is `partitions`."""

    def __init__(self) -> None:
        self.clock, self.log = ManualClock(), SentRecords(acknowledges=True)
        self.health = LogHealth(self.clock)
        self.sender = CallSender(self.log, self.health, patience_s=PATIENCE_S)
        self.job = call_job(tenant_id=TENANT)
        count = REQUESTS_INTERACTIVE.partition_count
        self.partitions = shuffle_shard(self.job.pool, TENANT, count)

    def send_calls(self, count: int = 8) -> list[OpenCall]:
        """Send as many calls to each partition of the shard, if all are usable."""
        calls = [OpenCall(call_job(tenant_id=TENANT), now_s=0.0) for _ in range(count)]
        for call in calls:
            self.sender.send(call, call_item(call.job, b"{}", TokenEstimate(1, 0, 0), 0))
        return calls

    def lose(self, *partitions: int) -> None:
        self.log.unavailable |= {(REQUESTS_INTERACTIVE.name, number) for number in partitions}

    def sent_to(self) -> set[int]:
        found = {record.partition for record in self.log.records}
        self.log.records.clear()
        return found


async def test_calls_avoid_a_partition_that_does_not_acknowledge() -> None:
    site = Site()
    lost, other = site.partitions
    while site.sent_to() != {lost, other}:  # ids are random
        site.send_calls()
    site.lose(lost)
    while lost not in site.sent_to():
        site.send_calls()
    site.clock.advance(PATIENCE_S + 0.1)
    site.sender.check_log_available(site.job)
    site.send_calls()
    assert site.sent_to() == {other}

    site.log.restore()
    while lost not in site.sent_to():
        site.send_calls()


async def test_a_call_is_refused_when_no_partition_of_its_shard_acknowledges() -> None:
    site = Site()
    site.lose(*site.partitions)
    while site.sent_to() != set(site.partitions):
        site.send_calls()
    site.clock.advance(PATIENCE_S + 0.1)
    with pytest.raises(ApiError):
        site.sender.check_log_available(site.job)
    with pytest.raises(ApiError):
        site.send_calls(1)
    tenants = (call_job(tenant_id=UUID(int=n)) for n in range(1000))
    count = REQUESTS_INTERACTIVE.partition_count
    other = next(
        job
        for job in tenants
        if set(site.partitions).isdisjoint(shuffle_shard(job.pool, job.tenant_id, count))
    )
    site.sender.check_log_available(other)


async def test_every_call_is_refused_while_heartbeats_are_not_acknowledged() -> None:
    site = Site()
    report = site.health.track(lambda _: None, CALLERS_PLACE)
    site.clock.advance(PATIENCE_S + 0.1)
    with pytest.raises(ApiError):
        site.sender.check_log_available(site.job)
    report(None)
    site.sender.check_log_available(site.job)


async def test_calls_that_wait_for_an_unavailable_partition_end() -> None:
    site = Site()
    lost, _ = site.partitions
    site.lose(lost)
    calls: list[OpenCall] = []
    while lost not in site.sent_to():
        calls += site.send_calls(1)
    has_begun = OpenCall(call_job(tenant_id=TENANT), now_s=0.0)
    has_begun.execution_id = new_uuid()
    site.sender.send(has_begun, call_item(has_begun.job, b"{}", TokenEstimate(1, 0, 0), 0))
    site.sender.fail_waiting_calls()

    failed = [call for call in calls if call.failure is not None]
    assert len(failed) == 1
    assert failed[0].failure is not None
    assert failed[0].failure.code == log_unavailable().code
    assert has_begun.failure is None


async def test_calls_may_be_acknowledged_while_waiting_ones_are_checked() -> None:
    """The collection of garbage lets another thread, the producer's, run between two calls."""
    site = Site()
    waiting = site.sender._waiting
    for _ in range(5_000):
        waiting[OpenCall(call_job(tenant_id=TENANT), now_s=0.0)] = (REQUESTS_INTERACTIVE.name, 0)

    class Acknowledged:
        """Garbage: its collection acknowledges a call, and leaves garbage again."""

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            if len(waiting) > 4_000:
                waiting.popitem()
                Acknowledged()

    thresholds = gc.get_threshold()
    gc.disable()
    Acknowledged()
    gc.set_threshold(1)
    gc.enable()
    try:
        site.sender.fail_waiting_calls()
    finally:
        gc.set_threshold(*thresholds)
    assert 4_000 <= len(waiting) < 5_000
