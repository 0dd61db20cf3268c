"""Watermarks of commits on `control` (`core.commit_watermark`): records keyed by installation.

The topic is compacted, so the newest watermark of an installation stays. Its records have the form
of a job's control state, so that readers of earlier releases skip them as an unknown job's.
"""

from uuid import UUID

from core.commit_watermark import CommitsLostError, CommitWatermark
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.catalogue import CONTROL
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

TAIL_RECORDS: int = 10_000
"""Records before the end of `control` that hold the newest watermark: it is written every second
in which intake writes control states, at most some thousands of them."""


class LogWatermarks:
    """The highest watermark of each installation, as far as the log was read.

    One thread writes, any may read.
    """

    def __init__(self) -> None:
        self.numbers: dict[UUID, int] = {}
        self._newest: JobControl | None = None

    def apply(self, control: JobControl) -> bool:
        """Record a watermark; return whether the record is one, and not the state of a job."""
        if not control.watermark:
            return False
        known = self.numbers.get(control.job_id, 0)
        self.numbers[control.job_id] = max(known, control.watermark)
        self._newest = control
        return True

    def raise_if_lost(self) -> None:
        """Raise CommitsLostError if the newest record says so, of whichever installation."""
        if self._newest is not None and self._newest.commits_lost:
            raise CommitsLostError(known=self._newest.watermark)


class CommitWatermarkReader:
    """Reads the newest watermarks without a thread: each call of `read` returns what arrived."""

    def __init__(self, kafka: KafkaSettings, *, client_id: str) -> None:
        self._reader = TopicTailReader(kafka, CONTROL, client_id=f"{client_id}-watermark")
        self.watermarks = LogWatermarks()

    def start(self, timeout_s: float) -> None:
        """Read the end of the topic. Raises KafkaUnavailableError."""
        self._reader.seek_before_end(TAIL_RECORDS, timeout_s)
        for records in self._reader.iter_to_end(timeout_s):
            self._apply(records)

    def read(self) -> dict[UUID, int]:
        """Return the highest number of each installation. Raises KafkaUnavailableError."""
        while records := self._reader.poll(0.0):
            self._apply(records)
        return self.watermarks.numbers

    def close(self) -> None:
        """Close the client."""
        self._reader.close()

    def _apply(self, records: list[ReceivedRecord]) -> None:
        for _, control in decode_records(JobControl, records):
            if control is not None:
                self.watermarks.apply(control)


def send_watermark(
    sender: RecordSender, watermark: CommitWatermark, on_delivery: OnDelivery | None = None
) -> None:
    """Write a watermark to the log, or that commits above it were lost. Raises DeliveryError."""
    installation_id = watermark.installation_id
    number = watermark.lost_above or watermark.number
    record = JobControl(
        job_id=installation_id,
        version=number,
        watermark=number,
        commits_lost=watermark.lost_above is not None,
    )
    sender.send(
        CONTROL.name,
        encode(record),
        partition=0,
        key=installation_id.bytes,
        headers=kind_headers(JobControl),
        on_delivery=on_delivery,
    )


def raise_if_log_says_lost(kafka: KafkaSettings, *, client_id: str, timeout_s: float) -> None:
    """Check before a role without a database starts. Raises CommitsLostError.

    Also raises KafkaUnavailableError.
    """
    reader = CommitWatermarkReader(kafka, client_id=client_id)
    try:
        reader.start(timeout_s)
    finally:
        reader.close()
    reader.watermarks.raise_if_lost()
