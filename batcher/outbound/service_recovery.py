"""Reads the newest reports of the topic `service` when a batcher starts, within a bounded time."""

import logging
import time
from typing import Final

from batcher.outbound.service_publisher import ServicePublisher
from batcher.policy.service_restore import AgedReport, Leads, restored_leads
from core.errors import MillraceError
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SERVICE
from topics.records.received_record import ReceivedRecord
from topics.records.records import ServiceReport
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)

RECORDS_MAX: Final = 100
"""Records that are read: two seconds of ten batchers, or more than a minute of one alone."""

READ_S_MAX: Final = 3.0
"""Time after which the batcher starts without leads: all tenants are level then."""


def read_leads(
    settings: KafkaSettings,
    producer: RecordProducer,
    publisher: ServicePublisher,
    *,
    job_class: str,
    client_id: str,
) -> Leads:
    """Return the leads of tenants by recent reports; none if the topic cannot be read in time.

    It publishes an empty report first, whose time is that of the broker now: clocks of hosts
    differ.
    """
    began_s = time.monotonic()
    try:
        publisher.publish({})
        producer.flush(READ_S_MAX)
        tail = TopicTailReader(settings, SERVICE, client_id=f"{client_id}-service-leads")
        try:
            left_s = max(0.1, READ_S_MAX - (time.monotonic() - began_s))
            tail.seek_before_end(RECORDS_MAX, left_s)
            records = tail.read_to_end(left_s)
        finally:
            tail.close()
        return restored_leads(aged_reports(records, client_id), job_class)
    except MillraceError as failure:  # a newer release's record, too: its reader ends the role
        _LOG.warning("tenants start level", extra={"code": failure.code})
        return {}


def aged_reports(records: list[ReceivedRecord], own_id: str) -> list[AgedReport]:
    """Return the reports with their ages at the own report; none without that one."""
    decoded = [(r.appended_ms, one) for r, one in decode_records(ServiceReport, records) if one]
    now_ms = max((at_ms for at_ms, one in decoded if one.batcher_id == own_id), default=None)
    if now_ms is None:
        return []
    return [AgedReport(max(0.0, (now_ms - at_ms) / 1000), one) for at_ms, one in decoded]
