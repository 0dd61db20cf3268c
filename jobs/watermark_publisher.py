"""Increments the watermark of commits and writes it to the log (`core.commit_watermark`).

    read log ─► compare ─► increment, commit ─► send

Every intake process does so; the database lets one of them increment the number each second.
"""

import logging
from contextlib import suppress
from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from core.commit_watermark import CommitsLostError, CommitWatch, CommitWatermark
from storage.postgres.engines import DATABASE_UNAVAILABLE, autocommit
from storage.postgres.watermark_row import DatabaseWatermark, raise_if_commits_lost
from topics.clients.producer import PartitionSender
from topics.clients.tracked_sends import TrackedSends
from topics.errors import DeliveryError
from topics.tail_readers.commit_watermarks import CommitWatermarkReader, send_watermark

_LOG = logging.getLogger(__name__)

_REPORT_S_MAX: Final = 5.0


class WatermarkPublisher:
    """Publishes the watermark and stops all roles when commits were lost. Used by one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        reader: CommitWatermarkReader,
        sender: PartitionSender,
        clock: Clock,
    ) -> None:
        self._engine, self._reader, self._sender = engine, reader, sender
        self._watch = CommitWatch(clock)
        self._sends = TrackedSends(sender)

    def start(self, timeout_s: float) -> None:
        """Read the end of the topic, and check unless Postgres is unavailable.

        Raises CommitsLostError, KafkaUnavailableError.
        """
        self._reader.start(timeout_s)
        with suppress(*DATABASE_UNAVAILABLE):
            self.check()

    def check(self) -> None:
        """Compare log and database; tell the other roles over the log when commits were lost.

        Raises CommitsLostError, KafkaUnavailableError, and one of DATABASE_UNAVAILABLE.
        """
        try:
            raise_if_commits_lost(self._engine, self._watch, self._reader.read())
        except CommitsLostError:
            self._report_loss()
            raise

    def run_once(self) -> None:
        """Check, then increment the number unless its last record is not acknowledged yet.

        Raises what `check` raises, and DeliveryError.
        """
        self.check()
        if not self._sends.is_acknowledged:
            return
        with autocommit(self._engine) as connection:
            watermark = DatabaseWatermark(connection).advance(self._watch.highest)
        if watermark is not None:
            self._watch.highest = watermark.number
            self._send(watermark)

    def _report_loss(self) -> None:
        with self._engine.connect() as connection:
            lost = DatabaseWatermark(connection).read()
        if lost is None or lost.lost_above is None:  # `millrace recover` has run meanwhile
            return
        try:
            self._send(lost)
            if not self._sends.wait(_REPORT_S_MAX):
                _LOG.warning("the log does not acknowledge that commits were lost")
        except DeliveryError:
            _LOG.warning("the log does not accept that commits were lost")

    def _send(self, watermark: CommitWatermark) -> None:
        self._sends = TrackedSends(self._sender)
        send_watermark(self._sends, watermark)
