"""Keeps a replica in standby until it is needed: its engine sleeps, and it reads `scaling`."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from core.clock import Clock
from core.errors import RecordUnreadableError
from gpu_consumers import metrics
from gpu_consumers.engines.engine import CanSleep, Engine
from gpu_consumers.standby.standby_orders import JoinReason, StandbyOrders
from topics.records.catalogue import SCALING
from topics.records.codec import decode, kind_of
from topics.records.kinds import KINDS
from topics.records.received_record import ReceivedRecord
from topics.records.scaling import AutoscalerEpoch, PoolScaling
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)

_CHECK_S: Final = 0.1
"""Time between two looks at the signal to stop. Orders are followed at once."""

_POLL_S: Final = 0.1
_UNAVAILABLE_S_MAX: Final = float("inf")  # the orders then count as silent, and the replica joins


def apply_records(
    orders: StandbyOrders, records: Iterable[ReceivedRecord], *, now_s: float
) -> None:
    """Apply records of `scaling`; unreadable ones are logged and skipped.

    Raises SchemaTooNewError: a newer release must read them.
    """
    for record in records:
        if record.value is None:
            continue
        try:
            kind = kind_of(record.headers)
            if kind == KINDS[AutoscalerEpoch]:
                orders.apply_epoch(
                    decode(AutoscalerEpoch, record.value, record.headers), now_s=now_s
                )
            elif kind == KINDS[PoolScaling]:
                orders.apply_scaling(decode(PoolScaling, record.value, record.headers), now_s=now_s)
        except RecordUnreadableError:
            _LOG.warning("a record of scaling is unreadable", extra={"offset": record.offset})


async def stand_by(  # noqa: PLR0913  each one is a part of the replica
    engine: Engine,
    kafka: KafkaSettings,
    *,
    pool: str,
    replica_id: str,
    clock: Clock,
    stop: threading.Event,
    raise_failure: Callable[[], None] = lambda: None,
) -> JoinReason | None:
    """Return when the replica is to join its groups, its engine awake; None once `stop` is set.

    The engine sleeps meanwhile if it can. Raises EngineDeadError, SchemaTooNewError, and what
    `raise_failure` raises: the failure of a part of the replica that runs in standby, too.
    """
    orders = StandbyOrders(pool, replica_id, clock.monotonic_s())
    lock, loop, has_news = threading.Lock(), asyncio.get_running_loop(), asyncio.Event()

    def handle(records: list[ReceivedRecord]) -> None:
        with lock:
            apply_records(orders, records, now_s=clock.monotonic_s())
        if records:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(has_news.set)

    reader = TopicTailReader(kafka, SCALING, client_id=f"{replica_id}-scaling")
    tail = TailReaderThread(
        reader,
        handle,
        name="scaling-tail",
        poll_s=_POLL_S,
        unavailable_s_max=_UNAVAILABLE_S_MAX,
    )
    sleeper = engine if isinstance(engine, CanSleep) and engine.can_sleep else None
    if sleeper is not None:
        await sleeper.sleep()
    metrics.ASLEEP.set(1)
    tail.start()
    try:
        reason = None
        while reason is None and not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await has_news.wait()
            has_news.clear()
            tail.raise_failure()
            raise_failure()
            with lock:
                reason = orders.join_reason(now_s=clock.monotonic_s())
    finally:
        metrics.ASLEEP.set(0)
        tail.request_stop()
        # Not awaited: the client takes a while to close, and the work waits.
        threading.Thread(target=tail.stop, name="scaling-tail-stop", daemon=True).start()
    if reason is not None:
        _LOG.info("the replica leaves standby", extra={"reason": reason.value})
        metrics.WAKES.labels(reason.value).inc()
        if sleeper is not None:
            await sleeper.wake()
    return reason
