"""Goal: the predictions of wakes outlive a failure of the log, and delay no start of the api."""

from prometheus_client import REGISTRY

from api.online.scaling_reader import (
    READY_S_MAX,
    RETRY_S_MAX,
    RETRY_S_MIN,
    Handle,
    OnFailure,
    ScalingReader,
)
from tests.support.clock import ManualClock
from topics.records.received_record import ReceivedRecord


class Tail:
    """A thread that reads when the test says so."""

    def __init__(self, handle: Handle, fail: OnFailure) -> None:
        self.handle, self.fail = handle, fail
        self.is_started = self.is_stopped = False

    def start_before_end(self, count: int) -> None:
        self.is_started = True

    def request_stop(self) -> None: ...

    def stop(self) -> None:
        self.is_stopped = True


class Site:
    def __init__(self) -> None:
        self.clock, self.tails = ManualClock(100.0), list[Tail]()
        self.applied: list[list[ReceivedRecord]] = []
        self.reader = ScalingReader(self.build, self.applied.append, self.clock)

    def build(self, handle: Handle, fail: OnFailure) -> Tail:
        self.tails.append(Tail(handle, fail))
        return self.tails[-1]

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.reader.check()

    async def fail(self) -> None:
        self.tails[-1].fail(OSError())
        await self.reader.check()


async def test_a_reader_that_failed_is_replaced_with_growing_pauses() -> None:
    site = Site()
    site.reader.start()
    pauses = [30.0, 60.0, 120.0, 240.0, RETRY_S_MAX, RETRY_S_MAX]
    for number, pause_s in enumerate(pauses, start=1):
        await site.fail()
        await site.pass_time(pause_s - 1)
        assert len(site.tails) == number
        await site.pass_time(1.0)
        assert len(site.tails) == number + 1
        assert site.tails[-2].is_stopped
        assert site.tails[-1].is_started


async def test_a_reader_that_read_is_replaced_soon() -> None:
    site = Site()
    site.reader.start()
    for _ in range(3):
        site.tails[-1].handle([])
        await site.fail()
        await site.pass_time(RETRY_S_MIN)
    assert len(site.tails) == 4
    assert site.applied == [[], [], []]


async def test_the_metric_says_whether_it_reads() -> None:
    def value() -> float | None:
        return REGISTRY.get_sample_value("millrace_online_scaling_reader")

    site = Site()
    site.reader.start()
    site.tails[-1].handle([])
    await site.reader.check()
    assert value() == 1
    await site.fail()
    assert value() == 0


async def test_readiness_waits_for_the_first_records_for_two_seconds_at_most() -> None:
    site = Site()
    assert not site.reader.is_settled
    site.reader.start()
    site.clock.advance(READY_S_MAX - 0.1)
    assert not site.reader.is_settled
    site.clock.advance(0.1)
    assert site.reader.is_settled


async def test_readiness_does_not_wait_for_a_reader_that_reads_or_failed() -> None:
    reads, fails = Site(), Site()
    reads.reader.start()
    reads.tails[-1].handle([])
    assert reads.reader.is_settled
    fails.reader.start()
    await fails.fail()
    assert fails.reader.is_settled
