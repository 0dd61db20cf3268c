"""Goal: reports on `service` are applied by the thread that reads them, not on the event loop."""

import threading
from typing import Any

import pytest

from api.online.served_shares import ServedShares
from core.ids import new_uuid
from tests.integration.api.online_site import OpenOnline
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SERVICE
from topics.records.codec import encode, kind_headers
from topics.records.records import ServiceReport, TenantService
from topics.settings import KafkaSettings


def test_reports_are_applied_by_the_thread_that_reads_them(
    kafka: KafkaSettings, open_online: OpenOnline, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, threads = ServedShares.apply, set()

    def noted(shares: ServedShares, *given: Any, now_s: float) -> None:
        apply(shares, *given, now_s=now_s)
        threads.add(threading.current_thread().name)

    monkeypatch.setattr(ServedShares, "apply", noted)
    TopicAdmin(kafka).create([SERVICE])
    online = open_online()
    report = ServiceReport("b", "bulk", {"p": [TenantService(new_uuid(), 1.0, 5)]})
    producer = RecordProducer(kafka, client_id="played-batcher", linger_ms=0)

    def is_applied() -> bool:
        """Report again: the API may begin to read after a report, as readiness does not wait."""
        value, headers = encode(report), kind_headers(ServiceReport)
        producer.send(SERVICE.name, value, partition=0, key=b"b", headers=headers)
        return bool(threads)

    online.pool.wait_for(is_applied)
    producer.close()
    assert threads == {"service-tail"}
