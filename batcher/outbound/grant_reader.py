"""Reads the grants of replicas to batchers of one class, without Faust."""

from collections.abc import Callable
from typing import Final

from topics.records.catalogue import GRANTS, grants_partition
from topics.records.received_record import ReceivedRecord
from topics.records.records import ReplicaGrants
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

POLL_INTERVAL_S: Final = {"bulk": 0.01, "interactive": 0.002}
"""Time for which grants are collected, by class: online calls wait for them."""


class GrantReader:
    """A thread that reads the grants of one class from the topic's present end on."""

    def __init__(
        self,
        settings: KafkaSettings,
        job_class: str,
        *,
        client_id: str,
        on_grants: Callable[[list[ReplicaGrants]], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Both callbacks run in the thread."""
        self._tail = TopicTailReader(
            settings,
            GRANTS,
            client_id=f"{client_id}-grants",
            partitions=[grants_partition(job_class)],
            reset_to_earliest=False,
            poll_interval_s=POLL_INTERVAL_S[job_class],
        )
        self._on_grants = on_grants
        self._thread = TailReaderThread(
            self._tail, self._read_records, name="grants-tail", on_failure=on_failure
        )

    def start(self, timeout_s: float) -> None:
        """Read from the present end: replicas repeat their state, so old records are useless.

        Raises KafkaUnavailableError.
        """
        self._tail.seek_to_end(timeout_s)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._thread.stop()

    def _read_records(self, records: list[ReceivedRecord]) -> None:
        if grants := latest_grants(records):
            self._on_grants(grants)


def latest_grants(records: list[ReceivedRecord]) -> list[ReplicaGrants]:
    """Return the latest grants of each replica; its earlier records are not decoded.

    Raises SchemaTooNewError.
    """
    newest = {record.key: record for record in records}  # of one class
    return [one for _, one in decode_records(ReplicaGrants, newest.values()) if one is not None]
