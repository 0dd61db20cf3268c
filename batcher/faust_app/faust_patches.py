# ruff: noqa: SLF001 - the point of this module is to replace parts of one exact release
"""Four repairs of faust-streaming 0.15.3, each with a test; delete them when a release has them.

1. When every partition is paused or buffered, the fetch loop sleeps 20 ms, not 1 s: an agent that
   holds back fills its buffer, and each fill would cost a second of standstill. The set of active
   partitions is also copied before it goes to the consumer's thread, which iterates over it.
2. While flow is active and no queue is full, delivering a record cannot wait, so it needs no race
   of four tasks against a rebalance: that race is two thirds of Faust's CPU per record.
3. The group is joined without first waiting a second for tables: we have none, and whoever starts
   in the place of a dead batcher should be there before the session of that one ends.
4. A fetch that finds nothing waits for 0.25 s at the broker, not for 1.5 s. A connection has its
   requests answered in their order, so after a rebalance the first questions about new partitions
   wait behind the last fetch of the old ones.

Not repaired: commits past unacknowledged events (`acks` never causes them), `pause_partitions` and
`take` (not used here).
"""

from collections.abc import Awaitable
from typing import Any

import faust
from faust.tables.manager import TableManager
from faust.transport.consumer import Consumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread

VERSION = "0.15.3"
IDLE_SLEEP_S = 0.02
FETCH_WAIT_MS = 250

_wait_first = Consumer.wait_first
_create_client = AIOKafkaConsumerThread._create_worker_consumer


def install() -> None:
    """Patch Faust in this process, once, before an app starts."""
    assert faust.__version__ == VERSION, "read the new release and decide again"
    Consumer._wait_next_records = wait_next_records
    Consumer.wait_first = wait_first
    TableManager.on_start = start_tables
    AIOKafkaConsumerThread._create_worker_consumer = create_client


async def wait_next_records(self: Any, timeout: float) -> tuple[Any, Any]:  # noqa: ASYNC109
    """Replace `Consumer._wait_next_records` (repair 1)."""
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
    """Replace `Consumer.wait_first`, which mode's `Service` defines (repair 2).

    Only the fetch loop calls it with two waits: the delivery and `suspend_flow.wait()`.
    """
    if len(waits) == 2 and timeout is None and can_deliver_at_once(self):
        delivery: Awaitable[Any]
        delivery, suspension = waits
        suspension.close()
        return await delivery
    return await _wait_first(self, *waits, timeout=timeout)


def can_deliver_at_once(consumer: Any) -> bool:
    """Whether handing a record to its stream cannot wait for anything."""
    flow = consumer.app.flow_control
    if consumer.suspend_flow.is_set() or not flow.is_active():
        return False
    return not any(queue.full() for queue in flow._queues)


async def start_tables(self: Any) -> None:
    """Replace `TableManager.on_start` (repair 3): the same without a second's sleep before it."""
    assert not self.data, "tables that register late would be missed"
    await self._update_channels()
    await self.recovery.start()


def create_client(self: Any, transport: Any) -> Any:
    """Replace `AIOKafkaConsumerThread._create_worker_consumer` (repair 4)."""
    client = _create_client(self, transport)
    assert hasattr(client, "_fetch_max_wait_ms"), "read the new release and decide again"
    client._fetch_max_wait_ms = FETCH_WAIT_MS  # read when the client starts
    return client


def member_id(app: faust.App) -> str:
    """Return by which id the broker knows this member of the group, which each join may change."""
    return str(app.consumer._thread._ensure_consumer()._coordinator.member_id)
