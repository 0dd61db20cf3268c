"""Which jobs are closed, as the control topic tells: a courtesy that saves work early.

What counts is decided on `results` alone; whoever asks here only avoids useless execution.
"""

import logging
import threading
from uuid import UUID

from core.errors import MillraceError, RecordUnreadableError
from topics.catalogue import CONTROL
from topics.codec import decode
from topics.consumer import Received
from topics.records import JobControl
from topics.settings import KafkaSettings
from topics.tail import TopicTail

_LOG = logging.getLogger(__name__)
_POLL_S = 0.5


class ClosedJobs:
    """The set of closed jobs, read to its end at start and followed by a thread."""

    def __init__(self, settings: KafkaSettings, *, client_id: str) -> None:
        """Read nothing yet."""
        self._tail = TopicTail(settings, CONTROL, client_id=f"{client_id}-control")
        self._closed: set[UUID] = set()
        self._failure: MillraceError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="control-tail", daemon=True)

    def start(self, timeout_s: float) -> None:
        """Read to the end, then follow. Raises LogUnavailableError."""
        self._apply(self._tail.read_to_end(timeout_s))
        self._thread.start()

    def is_closed(self, job_id: UUID) -> bool:
        """Whether results of the job have stopped to count.

        Raises what ended the following, SchemaTooNewError or LogUnavailableError: without news
        the process must not go on.
        """
        if self._failure is not None:
            raise self._failure
        return job_id in self._closed

    def stop(self) -> None:
        """Stop following."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._tail.close()

    def _follow(self) -> None:
        try:
            while not self._stopping.is_set():
                self._apply(self._tail.poll(_POLL_S))
        except MillraceError as failure:
            self._failure = failure

    def _apply(self, records: list[Received]) -> None:
        for record in records:
            if record.value is None:
                if record.key is not None:
                    self._closed.discard(UUID(bytes=record.key))
                continue
            try:
                control = decode(JobControl, record.value, record.headers)
            except RecordUnreadableError:
                _LOG.exception("unreadable control record", extra={"offset": record.offset})
                continue
            if control.closed is None:
                self._closed.discard(control.job_id)
            else:
                self._closed.add(control.job_id)
