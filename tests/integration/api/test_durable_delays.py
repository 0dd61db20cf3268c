"""Goal: what delays a durable call before its record counts, and cannot make two of one."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import api.online.durable
import api.online.sending
from storage.errors import ObjectStoreAwayError
from tests.integration.api.answers import refused
from tests.integration.api.durable_site import ASK, ENDPOINT, Durable, opened
from tests.integration.api.pool import say_nothing
from topics.errors import DeliveryError
from topics.settings import KafkaSettings

KEY = {"Idempotency-Key": "k"}


@pytest.fixture
def durable(
    kafka_bootstrap: str, topic_prefix: str, database_url: str, tmp_path: Path
) -> Iterator[Durable]:
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    with opened(kafka, database_url, tmp_path / uuid.uuid4().hex) as site:
        yield site


@pytest.mark.parametrize("late", ["write_object", "commit_request"])
def test_what_comes_before_the_record_counts(
    durable: Durable, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """A store and a database that take their time are within the deadline of a call."""
    own = getattr(api.online.durable, late)

    def delayed(*args: object) -> object:
        time.sleep(4)
        return own(*args)

    monkeypatch.setattr(api.online.durable, late, delayed)
    durable.pool.script = say_nothing
    began_s = time.monotonic()
    with durable.site.client() as client:
        answer = client.post(ENDPOINT, json=ASK, headers=KEY | {"X-Request-Timeout-Ms": "3000"})

    assert refused(answer, 504)["code"] == "deadline_exceeded"
    assert time.monotonic() - began_s < 6  # not another 3 s behind those 4


def test_what_is_known_needs_no_store(durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ASK | {"background": True}
    with durable.site.client() as client:
        first = client.post(ENDPOINT, json=asked, headers=KEY)

        def refuse(*_: object) -> None:
            raise ObjectStoreAwayError

        monkeypatch.setattr(api.online.durable, "write_object", refuse)
        again = client.post(ENDPOINT, json=asked, headers=KEY)
        assert (again.status_code, again.content) == (202, first.content)
        other = client.post(ENDPOINT, json=asked | {"seed": 1}, headers=KEY)
        assert refused(other, 422)["code"] == "idempotency_key_reused"
        refused(client.post(ENDPOINT, json=asked, headers={"Idempotency-Key": "new"}), 503)


def test_what_is_committed_and_cannot_be_sent_is_accepted(
    durable: Durable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repair sends it. Another try would be another call, unless it has a key."""

    def refuse(*_: object) -> None:
        raise DeliveryError("the local queue stayed full")

    monkeypatch.setattr(api.online.sending, "send_chunk", refuse)
    with durable.site.client() as client:
        patient = client.post(ENDPOINT, json=ASK, headers={"Prefer": "wait=60"})
        assert patient.status_code == 202
        keyed = client.post(ENDPOINT, json=ASK, headers=KEY)
        assert refused(keyed, 503)["code"] == "log_unavailable"
    assert durable.job_count() == 2
