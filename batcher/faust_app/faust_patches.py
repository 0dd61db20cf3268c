# ruff: noqa: SLF001 - this module replaces private parts of exact releases
"""Patches of faust-streaming 0.15.3, each with a test; remove one when a release includes its fix.

1. When every partition is paused or buffered, the fetch loop sleeps 20 ms instead of 1 s. An agent
   under backpressure fills its buffer, and each fill would stall reading for a second. The set of
   active partitions is copied before it goes to the consumer's thread, which iterates over it.
2. While flow is active and no queue is full, delivering a record cannot block, so it skips the race
   of four tasks against a rebalance, which costs two thirds of Faust's CPU time per record.
3. The group is joined without first waiting a second for tables: there are none, and a batcher that
   replaces a dead one should join before the dead one's session times out.
4. A fetch without records waits at the broker for 0.25 s instead of 1.5 s. A connection answers
   requests in order, so after a rebalance the first requests for new partitions wait behind the
   last fetch of the old ones.
5. A partition without a committed offset is read from its beginning after a rebalance. aiokafka
   leaves its position where it is, behind records that Faust fetched during the rebalance and
   discarded: they would never be delivered, and the offset committed next would pass them.

Not patched: commits past unacknowledged events (`ordered_acks` never causes them) and `take`
(unused). `pause_partitions` drops fetched records in the release; patch 1 copies the set of active
partitions, so that they are delivered.
"""

from collections.abc import Awaitable
from importlib.metadata import version
from typing import Any, Final

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher
from faust.tables.manager import TableManager
from faust.transport.consumer import Consumer
from faust.transport.drivers import aiokafka as driver

PINNED: Final = {"faust-streaming": "0.15.3", "mode-streaming": "0.7.1", "aiokafka": "0.14.0"}
"""Releases whose private parts `batcher.faust_app` replaces or calls."""

PRIVATE_PARTS: Final[dict[type, tuple[str, ...]]] = {
    Consumer: ("_wait_next_records", "_getmany", "_get_active_partitions", "wait_first"),
    TableManager: ("on_start", "_update_channels"),
    driver.AIOKafkaConsumerThread: (
        "_create_worker_consumer",  # patch 4
        "_ensure_consumer",  # `member_id` and patch 5
        "_serve",  # `SingleLoopClient` runs it on the application's loop
        "_gather_remaining_tasks",  # `SingleLoopClient` disables it
    ),
    driver.Consumer: ("_new_consumer_thread",),  # returns a `SingleLoopClient`
    Fetcher: ("_proc_fetch_request",),  # `SingleLoopClient` adds the fetch gap
}
"""Members that are replaced or called by their private name; another release may lack them."""

IDLE_SLEEP_S = 0.02
FETCH_WAIT_MS = 250

_wait_first = Consumer.wait_first
_create_client = driver.AIOKafkaConsumerThread._create_worker_consumer


def install() -> None:
    """Patch Faust in this process, once, before an app starts."""
    require_pinned_releases()
    Consumer._wait_next_records = wait_next_records
    Consumer.wait_first = wait_first
    TableManager.on_start = start_tables
    driver.AIOKafkaConsumerThread._create_worker_consumer = create_client
    driver.AIOKafkaConsumerThread.seek_to_committed = seek_to_committed


def require_pinned_releases() -> None:
    """Assert that the patched releases are installed and define the members that are used."""
    for distribution, pinned in PINNED.items():
        found = version(distribution)
        assert found == pinned, f"{distribution} {found}: review each patch, then update PINNED"
    for owner, names in PRIVATE_PARTS.items():
        missing = [name for name in names if not hasattr(owner, name)]
        assert not missing, f"{owner.__qualname__} lacks {missing}: review each patch"


async def wait_next_records(self: Any, timeout: float) -> tuple[Any, Any]:  # noqa: ASYNC109
    """Replace `Consumer._wait_next_records` (patch 1)."""
    if not self.flow_active:
        await self.wait(self.can_resume_flow)
    if self.app.client_only:
        return await self._getmany(active_partitions=None, timeout=timeout), None
    active = set(self._get_active_partitions())
    if not active:
        await self.sleep(IDLE_SLEEP_S)
        return {}, active
    return await self._getmany(active_partitions=active, timeout=timeout), active


async def wait_first(self: Any, *waits: Any, timeout: Any = None) -> Any:  # noqa: ASYNC109
    """Replace `Consumer.wait_first`, which mode's `Service` defines (patch 2).

    Only the fetch loop calls it with two waits: the delivery and `suspend_flow.wait()`.
    """
    if len(waits) == 2 and timeout is None and can_deliver_at_once(self):
        delivery: Awaitable[Any]
        delivery, suspension = waits
        suspension.close()
        return await delivery
    return await _wait_first(self, *waits, timeout=timeout)


def can_deliver_at_once(consumer: Any) -> bool:
    """Whether delivering a record to its stream cannot block."""
    flow = consumer.app.flow_control
    if consumer.suspend_flow.is_set() or not flow.is_active():
        return False
    return not any(queue.full() for queue in flow._queues)


async def start_tables(self: Any) -> None:
    """Replace `TableManager.on_start` (patch 3): the same without the one-second sleep."""
    assert not self.data, "tables that register late would be missed"
    await self._update_channels()
    await self.recovery.start()


def create_client(self: Any, transport: Any) -> Any:
    """Replace `AIOKafkaConsumerThread._create_worker_consumer` (patch 4)."""
    client = _create_client(self, transport)
    assert hasattr(client, "_fetch_max_wait_ms"), "aiokafka lacks _fetch_max_wait_ms: see PINNED"
    client._fetch_max_wait_ms = FETCH_WAIT_MS  # read when the client starts
    return client


async def seek_to_committed(self: Any) -> dict[Any, int | None]:
    """Replace `AIOKafkaConsumerThread.seek_to_committed` (patch 5)."""
    offsets: dict[Any, int | None] = await self.call_thread(
        seek_to_next_offsets, self._ensure_consumer()
    )
    return offsets


async def seek_to_next_offsets(client: AIOKafkaConsumer) -> dict[Any, int | None]:
    """Move each assigned partition to its committed offset, or to its beginning without one.

    Returns the committed offsets.
    """
    offsets: dict[Any, int | None] = await client.seek_to_committed()
    assigned = client.assignment()  # a rebalance may have revoked some meanwhile
    uncommitted = [each for each, offset in offsets.items() if not offset and each in assigned]
    if uncommitted:
        await client.seek_to_beginning(*uncommitted)
    return offsets


def resume_partitions(consumer: Any, partitions: set[Any]) -> None:
    """Fetch paused partitions again; those with a full buffer only once it is empty.

    Faust would fetch these at once, and its fetch loop would block while it adds their records.
    """
    consumer.resume_partitions(partitions)
    for partition in partitions & consumer._buffered_partitions:
        consumer.on_buffer_full(partition)


def client_of(app: faust.App) -> Any:
    """Return the `AIOKafkaConsumer` of an app; None before it has started."""
    return app.consumer._thread._consumer if app.started else None


def member_id(app: faust.App) -> str:
    """Return the broker's id of this group member; each join may change it."""
    return str(app.consumer._thread._ensure_consumer()._coordinator.member_id)
