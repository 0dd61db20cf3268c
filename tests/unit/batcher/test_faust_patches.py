"""Goal: the four repairs of Faust do what they say, and the app is set up as measured."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from aiokafka import AIOKafkaConsumer
from faust.events import Event
from faust.tables.manager import TableManager
from faust.transport.consumer import Consumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.types import TP, ConsumerMessage
from mode.utils.queues import FlowControlEvent, FlowControlQueue
from pydantic import SecretStr

from batcher.faust_app import faust_patches
from batcher.faust_app.app import RequestStream, build_app, credentials
from batcher.settings import BatcherSettings
from topics.records.received import Received
from topics.settings import KafkaSettings

KAFKA = KafkaSettings(bootstrap_servers="one:9092,two:9092", topic_prefix="t.")


class Fetcher:
    """As much of Faust's consumer as the repairs touch."""

    def __init__(self, *, queue_records: int = 1) -> None:
        self.suspend_flow = asyncio.Event()
        self.can_resume_flow = asyncio.Event()
        self.flow_active = True
        flow = FlowControlEvent(initially_suspended=False)
        self.queue: Any = FlowControlQueue(queue_records, flow_control=flow, clear_on_resume=True)
        self.app = SimpleNamespace(flow_control=flow, client_only=False)
        self.active: set[str] = set()
        self.slept_s: list[float] = []
        self.asked: list[set[str]] = []

    def _get_active_partitions(self) -> set[str]:
        return self.active

    async def _getmany(self, *, active_partitions: set[str], **_: float) -> dict[str, str]:
        self.asked.append(active_partitions)
        self.active.clear()  # as a buffer that becomes full does meanwhile
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


async def test_a_delivery_that_cannot_wait_is_not_raced(raced: list[int]) -> None:
    fetcher = Fetcher()
    result = await faust_patches.wait_first(
        fetcher, delivered(fetcher), fetcher.suspend_flow.wait()
    )
    assert result == "delivered"
    assert raced == []


@pytest.mark.parametrize("obstacle", ["full queue", "suspended flow", "rebalance"])
async def test_a_delivery_that_may_wait_is_raced_against_the_rebalance(
    raced: list[int], obstacle: str
) -> None:
    fetcher = Fetcher()
    if obstacle == "full queue":
        fetcher.queue.put_nowait("record")
    elif obstacle == "suspended flow":
        fetcher.app.flow_control.suspend()
    else:
        fetcher.suspend_flow.set()
    await faust_patches.wait_first(fetcher, delivered(fetcher), fetcher.suspend_flow.wait())
    assert raced == [2]


async def test_other_waits_are_left_alone(raced: list[int]) -> None:
    fetcher = Fetcher()
    await faust_patches.wait_first(fetcher, delivered(fetcher))
    await faust_patches.wait_first(
        fetcher, delivered(fetcher), fetcher.suspend_flow.wait(), timeout=1.0
    )
    assert raced == [1, 2]


async def test_with_every_partition_buffered_the_fetch_loop_sleeps_briefly() -> None:
    fetcher = Fetcher()
    assert await faust_patches.wait_next_records(fetcher, 1.0) == ({}, set())
    assert fetcher.slept_s == [faust_patches.IDLE_SLEEP_S]


async def test_the_consumer_gets_a_copy_of_the_active_partitions() -> None:
    fetcher = Fetcher()
    fetcher.active = {"p"}
    records, active = await faust_patches.wait_next_records(fetcher, 1.0)
    assert records == {"p": "records"}
    assert active == {"p"}
    assert fetcher.asked == [{"p"}]


async def test_tables_that_do_not_exist_are_not_waited_for() -> None:
    done: list[str] = []

    async def update_channels() -> None:
        done.append("channels")

    async def start() -> None:
        done.append("recovery")

    tables = SimpleNamespace(
        data={}, _update_channels=update_channels, recovery=SimpleNamespace(start=start)
    )
    await faust_patches.start_tables(tables)  # would sleep, and has nothing to sleep with
    assert done == ["channels", "recovery"]


async def test_a_fetch_that_finds_nothing_does_not_hold_up_a_rebalance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = AIOKafkaConsumer(bootstrap_servers="one:9092")
    monkeypatch.setattr(faust_patches, "_create_client", lambda *_: client)
    assert faust_patches.create_client(None, None) is client
    assert client._fetch_max_wait_ms == faust_patches.FETCH_WAIT_MS
    await client.stop()


def test_the_repairs_are_for_the_release_that_is_installed() -> None:
    assert faust_patches.PINNED["faust-streaming"] == faust.__version__
    faust_patches.install()
    assert Consumer.wait_first is faust_patches.wait_first
    assert Consumer._wait_next_records is faust_patches.wait_next_records
    assert TableManager.on_start is faust_patches.start_tables
    assert AIOKafkaConsumerThread._create_worker_consumer is faust_patches.create_client


async def test_the_app_is_set_up_as_measured(tmp_path: Path) -> None:
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


async def test_a_batcher_stays_in_its_group_though_it_reads_nothing_for_days(
    tmp_path: Path,
) -> None:
    app = build_app(KAFKA, BatcherSettings(job_class="interactive"), tmp_path)
    client = app.consumer._thread._create_worker_consumer(app.transport)
    assert 7 * 24 * 3600 * 1000 < client._max_poll_interval_ms < 2**31
    assert client._rebalance_timeout_ms == 60_000  # what the broker is told
    await client.stop()


class Owner:
    """Takes records, and keeps their events as tickets do."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.events: list[Any] = []

    def on_record(self, record: Received, event: Any) -> None:
        self.values.append(record.value)
        self.events.append(event)

    async def wait_until_ready(self) -> None:
        pass


class Stream:
    """As much of Faust's stream as the agent touches: `event` comes, and no other."""

    def __init__(self, event: Any) -> None:
        self.event = event
        self.channel = SimpleNamespace(queue=asyncio.Queue())

    def noack(self) -> "Stream":
        return self

    async def events(self) -> AsyncIterator[Any]:
        yield self.event


async def test_an_event_that_waits_for_its_acknowledgement_does_not_keep_the_value(
    tmp_path: Path,
) -> None:
    app = build_app(KAFKA, BatcherSettings(job_class="bulk"), tmp_path)
    owner: Any = Owner()
    stream = RequestStream(app, KAFKA, "bulk", owner)
    place = TP("t.requests.bulk", 3)
    message = ConsumerMessage(*place, 7, 1.0, 0, [], b"key", b"value", None, tp=place)
    await stream._read(Stream(Event(app, b"key", b"value", {}, message)))

    assert owner.values == [b"value"]
    [event] = owner.events
    assert event.value is None
    assert event.message.value is None
    stream.acknowledge(event)
    assert message.acked
    assert (message.tp, message.offset) == (place, 7)


def test_credentials_follow_the_settings_of_the_log() -> None:
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
