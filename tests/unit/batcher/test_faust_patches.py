"""Goal: the patches of Faust and its client on the app's loop work, configured as measured."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer
from faust.events import Event
from faust.tables.manager import TableManager
from faust.transport.consumer import Consumer
from faust.transport.drivers import aiokafka as driver
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP, ConsumerMessage
from mode.utils.queues import FlowControlEvent, FlowControlQueue
from pydantic import SecretStr

from batcher.faust_app import faust_patches
from batcher.faust_app.request_stream import RequestStream, build_app, credentials
from batcher.faust_app.single_loop_client import SingleLoopClient, with_fetch_gap
from batcher.settings import BatcherSettings
from topics.records.received_record import ReceivedRecord
from topics.settings import KafkaSettings

KAFKA = KafkaSettings(bootstrap_servers="one:9092,two:9092", topic_prefix="t.")


class Fetcher:
    """The members of Faust's consumer that the patches use."""

    def __init__(self, *, queue_records: int = 1) -> None:
        self.suspend_flow = asyncio.Event()
        self.can_resume_flow = asyncio.Event()
        self.flow_active = True
        flow = FlowControlEvent(initially_suspended=False)
        self.queue: Any = FlowControlQueue(queue_records, flow_control=flow, clear_on_resume=True)
        self.app = SimpleNamespace(flow_control=flow, client_only=False)
        self.active: set[str] = set()
        self.slept_s: list[float] = []
        self.requested: list[set[str]] = []

    def _get_active_partitions(self) -> set[str]:
        return self.active

    async def _getmany(self, *, active_partitions: set[str], **_: float) -> dict[str, str]:
        self.requested.append(active_partitions)
        self.active.clear()  # as when a buffer becomes full meanwhile
        return {"p": "records"}

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the races of a delivery against a rebalance."""
    races: list[int] = []

    async def race(_self: Any, *waits: Any, **_: Any) -> None:
        races.append(len(waits))
        for wait in waits:
            wait.close()

    monkeypatch.setattr(faust_patches, "_wait_first", race)
    return races


async def delivered(fetcher: Fetcher) -> str:
    return "delivered"


@pytest.mark.parametrize("obstacle", [None, "full queue", "suspended flow", "rebalance"])
async def test_only_blocking_delivery_is_raced_against_the_rebalance(
    raced: list[int], obstacle: str | None
) -> None:
    fetcher = Fetcher()
    if obstacle == "full queue":
        fetcher.queue.put_nowait("record")
    elif obstacle == "suspended flow":
        fetcher.app.flow_control.suspend()
    elif obstacle == "rebalance":
        fetcher.suspend_flow.set()
    result = await faust_patches.wait_first(
        fetcher, delivered(fetcher), fetcher.suspend_flow.wait()
    )
    assert (raced, result) == (([], "delivered") if obstacle is None else ([2], None))


async def test_other_waits_are_unchanged(raced: list[int]) -> None:
    fetcher = Fetcher()
    await faust_patches.wait_first(fetcher, delivered(fetcher))
    await faust_patches.wait_first(
        fetcher, delivered(fetcher), fetcher.suspend_flow.wait(), timeout=1.0
    )
    assert raced == [1, 2]


async def test_fetch_loop_sleeps_briefly_without_active_partitions() -> None:
    fetcher = Fetcher()
    assert await faust_patches.wait_next_records(fetcher, 1.0) == ({}, set())
    assert fetcher.slept_s == [faust_patches.IDLE_SLEEP_S]


async def test_consumer_gets_a_copy_of_the_active_partitions() -> None:
    fetcher = Fetcher()
    fetcher.active = {"p"}
    records, active = await faust_patches.wait_next_records(fetcher, 1.0)
    assert records == {"p": "records"}
    assert active == {"p"}
    assert fetcher.requested == [{"p"}]


async def test_start_does_not_wait_for_tables() -> None:
    done: list[str] = []

    async def update_channels() -> None:
        done.append("channels")

    async def start() -> None:
        done.append("recovery")

    tables = SimpleNamespace(
        data={}, _update_channels=update_channels, recovery=SimpleNamespace(start=start)
    )
    await faust_patches.start_tables(tables)  # a call of `sleep` would fail
    assert done == ["channels", "recovery"]


async def test_empty_fetch_waits_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    client = AIOKafkaConsumer(bootstrap_servers="one:9092")
    monkeypatch.setattr(faust_patches, "_create_client", lambda *_: client)
    assert faust_patches.create_client(None, None) is client
    assert client._fetch_max_wait_ms == faust_patches.FETCH_WAIT_MS
    await client.stop()


def test_patches_replace_their_members() -> None:
    faust_patches.install()
    assert Consumer.wait_first is faust_patches.wait_first
    assert Consumer._wait_next_records is faust_patches.wait_next_records
    assert TableManager.on_start is faust_patches.start_tables
    assert AIOKafkaConsumerThread._create_worker_consumer is faust_patches.create_client
    assert AIOKafkaConsumerThread.seek_to_committed is faust_patches.seek_to_committed


def test_other_releases_and_missing_members_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    faust_patches.require_pinned_releases()
    with monkeypatch.context() as patched:
        patched.setitem(faust_patches.PINNED, "aiokafka", "0.0")
        with pytest.raises(AssertionError, match="aiokafka"):
            faust_patches.require_pinned_releases()
    monkeypatch.setitem(faust_patches.PRIVATE_PARTS, Consumer, ("_no_such_member",))
    with pytest.raises(AssertionError, match="_no_such_member"):
        faust_patches.require_pinned_releases()


async def test_app_configuration(tmp_path: Path) -> None:
    settings = BatcherSettings(job_class="bulk")
    app = build_app(KAFKA, settings, tmp_path)
    assert app.conf.id == "t.batcher-bulk"
    assert [str(url) for url in app.conf.broker] == ["kafka://one:9092", "kafka://two:9092"]
    assert app.conf.stream_wait_empty is False
    assert app.conf.broker_session_timeout == KAFKA.session_timeout_s
    assert app.conf.broker_commit_interval == KAFKA.commit_interval_s
    assert app.conf.consumer_auto_offset_reset == "earliest"
    assert app.conf.web_enabled is False
    assert app.conf.broker_max_poll_records == settings.poll_records
    assert app.conf.stream_buffer_maxsize == settings.buffer_records


async def test_batcher_stays_in_its_group_without_polling_for_days(tmp_path: Path) -> None:
    app = build_app(KAFKA, BatcherSettings(job_class="interactive"), tmp_path)
    client = app.consumer._thread._create_worker_consumer(app.transport)
    assert 7 * 24 * 3600 * 1000 < client._max_poll_interval_ms < 2**31
    assert client._rebalance_timeout_ms == 60_000  # sent to the broker
    await client.stop()


class Stream:
    """The members of Faust's stream that the agent uses, with one event."""

    def __init__(self, event: Any) -> None:
        self.event = event
        self.channel = SimpleNamespace(queue=asyncio.Queue())

    def noack(self) -> "Stream":
        return self

    async def events(self) -> AsyncIterator[Any]:
        yield self.event


async def test_waiting_event_does_not_keep_its_value(tmp_path: Path) -> None:
    app = build_app(KAFKA, BatcherSettings(job_class="bulk"), tmp_path)
    values: list[bytes | None] = []
    events: list[Any] = []  # as tickets keep them

    def on_record(record: ReceivedRecord, event: Any) -> None:
        values.append(record.value)
        events.append(event)

    listener: Any = SimpleNamespace(on_record=on_record, wait_until_ready=partial(asyncio.sleep, 0))
    stream = RequestStream(app, KAFKA, "bulk", listener)
    place = TP("t.requests.bulk", 3)
    message = ConsumerMessage(*place, 7, 1.0, 0, [], b"key", b"value", None, tp=place)
    await stream._read(Stream(Event(app, b"key", b"value", {}, message)))

    assert values == [b"value"]
    [event] = events
    assert event.value is None
    assert event.message.value is None
    stream.acknowledge(event)
    assert message.acked
    assert (message.tp, message.offset) == (place, 7)


async def test_a_paused_partition_is_fetched_again_once_its_buffer_is_empty(
    tmp_path: Path,
) -> None:
    app = build_app(KAFKA, BatcherSettings(job_class="bulk"), tmp_path)
    stream = RequestStream(app, KAFKA, "bulk", cast(Any, SimpleNamespace()))
    consumer = app.consumer
    full, other = (TP("t.requests.bulk", number) for number in range(2))
    consumer._set_active_tps({full, other})
    stream.pause_only(frozenset({("requests.bulk", 0)}))
    assert consumer._get_active_partitions() == {other}

    consumer.on_buffer_full(full)
    stream.pause_only(frozenset())
    assert consumer._get_active_partitions() == {other}
    consumer.on_buffer_drop(full)
    assert consumer._get_active_partitions() == {full, other}


def test_credentials_follow_the_kafka_settings() -> None:
    assert credentials(KAFKA) is None
    given = KAFKA.model_copy(
        update={
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "batcher",
            "sasl_password": SecretStr("secret"),
        }
    )
    found: Any = credentials(given)
    assert (found.username, found.password) == ("batcher", "secret")
    assert found.mechanism.value == "SCRAM-SHA-512"
    assert found.protocol.value == "SASL_SSL"
    plain: Any = credentials(given.model_copy(update={"security_protocol": "SASL_PLAINTEXT"}))
    assert plain.ssl_context is None
    only_ssl: Any = credentials(KAFKA.model_copy(update={"security_protocol": "SSL"}))
    assert only_ssl.context is not None


class Fetches:
    """Answers that come at set times."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.now_s = 100.0
        self.asked_s: list[float] = []

    async def fetch(self) -> bool:
        self.asked_s.append(self.now_s)
        return self.answers.pop(0)


async def test_next_fetch_waits_only_after_a_response_with_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetches = Fetches(False, True, True, False)

    async def sleep(seconds: float) -> None:
        fetches.now_s += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    fetch = with_fetch_gap(fetches.fetch, gap_s=0.25, now_s=lambda: fetches.now_s)
    assert [await fetch() for _ in range(2)] == [False, True]
    assert fetches.asked_s == [100.0, 100.0]
    await fetch()
    fetches.now_s += 5.0
    await fetch()
    assert fetches.asked_s[2:] == [100.25, 105.25]


@pytest.mark.parametrize("job_class", ["interactive", "bulk"])
async def test_only_interactive_runs_on_the_apps_loop(tmp_path: Path, job_class: str) -> None:
    settings = BatcherSettings.model_validate({"job_class": job_class})
    app = build_app(KAFKA, settings, tmp_path)
    assert (app.transport.Consumer is not driver.Consumer) is (job_class == "interactive")


async def test_client_calls_run_directly(tmp_path: Path) -> None:
    app = build_app(KAFKA, BatcherSettings(job_class="interactive"), tmp_path)
    client = app.consumer._thread
    assert isinstance(client, SingleLoopClient)

    async def doubled(number: int) -> int:
        return 2 * number

    assert await client.call_thread(doubled, 21) == 42
    assert await client.call_thread(max, 1, 2) == 2
