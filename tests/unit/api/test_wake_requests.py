"""Goal: the autoscaler learns of calls and uploads at once, and not more often than it needs."""

from typing import Any

from api.online.send.api_load import ApiLoadPublisher
from api.online.send.wake_requests import (
    POOLS_MAX,
    UPLOAD_BYTES_PER_S,
    UPLOAD_GRACE_S,
    UPLOAD_S_MAX,
    WakeRequests,
    send_backlog,
)
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from topics.records.codec import decode
from topics.records.records import Record
from topics.records.scaling import RoleLoad, WakeRequest


class FullRecords(SentRecords):
    """A sender whose partitions take no record."""

    def has_space(self, topic: str, partition: int) -> bool:
        return False


class Site:
    """The wake requests of a process, and what they sent."""

    def __init__(self, *, is_needed: bool = True) -> None:
        self.clock, self.sent = ManualClock(100.0), list[tuple[bytes, Record]]()
        self.wakes = WakeRequests(
            "api-1",
            self.clock,
            lambda key, record: self.sent.append((key, record)),
            is_needed=lambda: is_needed,
        )

    def counts(self) -> list[tuple[int, int]]:
        """Return the uploads and calls of each record, and forget them."""
        records: list[Any] = [record for _, record in self.sent]
        self.sent.clear()
        return [(one.uploads, one.calls) for one in records]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.wakes.send_due()


def test_the_first_call_is_told_at_once_and_others_once_a_second() -> None:
    site = Site()
    for _ in range(3):
        site.wakes.note_call("p")
    site.wakes.note_call("q")
    assert site.sent[0] == (b"api-1:p", WakeRequest("api-1", "p", 100.0, 0, 1))
    assert site.counts() == [(0, 1), (0, 1)]
    site.pass_time(0.9)
    assert site.counts() == []
    site.pass_time(0.1)
    assert site.counts() == [(0, 1)]  # that there were some, not how many
    site.pass_time(5.0)
    assert site.counts() == []


def test_an_upload_is_told_each_second_until_it_ends() -> None:
    site = Site()
    with site.wakes.uploading("p"):
        site.pass_time(0.5)
        with site.wakes.uploading("p"):
            site.pass_time(0.5)
        site.pass_time(1.0)
    assert site.counts() == [(1, 0), (2, 0), (1, 0)]
    site.pass_time(1.0)
    assert site.counts() == []


def test_an_upload_is_told_for_ten_minutes() -> None:
    site = Site()
    with site.wakes.uploading("p") as upload:
        upload.received_bytes = 10**12
        site.pass_time(UPLOAD_S_MAX - 1)
        assert site.counts() == [(1, 0), (1, 0)]
        site.pass_time(1.0)
        assert site.counts() == []
        with site.wakes.uploading("p"):
            assert site.counts() == [(1, 0)]  # the other one


def test_a_slow_upload_is_not_told_while_it_is_slow() -> None:
    site = Site()
    with site.wakes.uploading("p") as upload:
        site.pass_time(UPLOAD_GRACE_S - 1)
        assert site.counts() == [(1, 0), (1, 0)]
        site.pass_time(11.0)
        assert site.counts() == []
        upload.received_bytes = 30 * UPLOAD_BYTES_PER_S
        site.pass_time(1.0)
        assert site.counts() == [(1, 0)]
        site.pass_time(10.0)
        assert site.counts() == []


def test_a_batch_over_a_stored_file_is_told_once() -> None:
    site = Site()
    site.wakes.note_batch("p")
    site.pass_time(1.0)
    assert site.counts() == [(1, 0)]


def test_pools_are_bounded_and_forgotten() -> None:
    site = Site()
    for number in range(POOLS_MAX + 1):
        site.wakes.note_call(f"p{number}")
    with site.wakes.uploading("one too many"):
        site.pass_time(1.0)
    assert len(site.counts()) == POOLS_MAX
    site.wakes.note_call("new")
    assert site.counts() == [(0, 1)]


def test_nothing_is_told_where_no_autoscaler_ever_ran() -> None:
    site = Site(is_needed=False)
    site.wakes.note_call("p")
    site.wakes.note_batch("p")
    with site.wakes.uploading("p"):
        site.pass_time(1.0)
    assert site.sent == []


def test_a_record_goes_to_backlog_unless_its_partition_takes_none() -> None:
    sender, record = SentRecords(acknowledges=True), WakeRequest("api-1", "p", 100.0)
    send_backlog(sender, b"key", record)
    (sent,) = sender.records
    assert (sent.topic, sent.partition, sent.key) == ("backlog", 0, b"key")
    assert decode(WakeRequest, sent.value, sent.headers) == record
    full = FullRecords()
    send_backlog(full, b"key", record)
    assert full.records == []


def test_the_load_of_a_process() -> None:
    clock, sent, needed = ManualClock(100.0), list[tuple[bytes, Record]](), [False]
    load = ApiLoadPublisher(
        "api-1", clock, lambda *one: sent.append(one), lambda: 7, is_needed=lambda: needed[0]
    )
    load.count_request()
    clock.advance(1.0)
    load.publish()
    assert sent == []  # no autoscaler reads it
    needed[0] = True
    for _ in range(10):
        load.count_request()
    load.meter.add_lag(0.25)
    clock.advance(2.0)
    load.publish()
    ((key, record),) = sent
    assert key == b"api:api-1"
    assert isinstance(record, RoleLoad)
    assert (record.role, record.process_id, record.at_s) == ("api", "api-1", 103.0)
    assert (record.work_per_s, record.waiting, record.loop_lag_s) == (5.0, 7.0, 0.25)
    assert 0.0 <= record.busy <= 1.0
