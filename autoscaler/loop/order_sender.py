"""Has orders carried out: one at a time for each pool, all pools at once, failures with backoff."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from autoscaler.actuators.actuator import (
    EPOCH_LEAP_MAX,
    Actuator,
    ActuatorError,
    ActuatorTimeoutError,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
)
from autoscaler.metrics import FAILURES
from core.errors import MillraceError

APPLY_S_MAX: Final = 10.0
BACKOFF_S_MAX: Final = 60.0
_BACKOFF_S: Final = 1.0
_DOUBLINGS_MAX: Final = 6

_LOG = logging.getLogger(__name__)


class _PoolOrders:
    """The orders of one pool."""

    def __init__(self) -> None:
        self.accepted: PoolOrder | None = None  # without epoch and sequence
        self.accepted_by: Actuator | None = None
        self.accepted_s = 0.0
        self.failure = ""
        self.failures = 0
        self.retry_s = 0.0
        self.task: asyncio.Task[None] | None = None

    def with_backoff(self) -> "_PoolOrders":
        """Return the state in which the next epoch begins: its first order waits as this one."""
        after = _PoolOrders()
        after.failure, after.failures, after.retry_s = self.failure, self.failures, self.retry_s
        return after


class OrderSender:
    """Sends orders to actuators, on an event loop."""

    def __init__(
        self,
        now_s: Callable[[], float],
        on_failure: Callable[[str], None],
        on_stale_epoch: Callable[[int], None],
        *,
        apply_s_max: float = APPLY_S_MAX,
    ) -> None:
        """`on_failure` gets the pool, `on_stale_epoch` the epoch that the platform has seen."""
        self._now_s, self._on_failure, self._on_stale = now_s, on_failure, on_stale_epoch
        self._apply_s_max = apply_s_max
        self._pools: dict[str, _PoolOrders] = {}

    def failure(self, pool: str) -> str:
        """Return the code of the last order's error; empty if it was accepted."""
        return self._pools[pool].failure if pool in self._pools else ""

    def is_due(
        self,
        pool: str,
        order: PoolOrder,
        actuator: Actuator,
        *,
        is_carried_out: bool,
        settle_s: float,
    ) -> bool:
        """Return whether to send an order: it is new, it failed, or it was not carried out in time.

        It is new to an actuator that was opened since, or that the pool did not have before.
        `order` has neither epoch nor sequence.
        """
        known = self._pools.get(pool)
        if known is None:
            return True
        now_s = self._now_s()
        if known.task is not None or now_s < known.retry_s:
            return False
        if known.accepted != order or known.accepted_by is not actuator:
            return True
        return not is_carried_out and now_s - known.accepted_s >= settle_s

    def send(
        self,
        order: PoolOrder,
        actuator: Actuator,
        write: Callable[[], Awaitable[bool]],
    ) -> None:
        """Start to write the order to the log, and then to have it carried out.

        `write` returns whether this process still decides.
        """
        pool = self._pools.setdefault(order.pool, _PoolOrders())
        assert pool.task is None
        pool.task = asyncio.create_task(self._carry_out(pool, order, actuator, write))

    def fail(self, pool: str, code: str) -> None:
        """Count an order that cannot be sent."""
        known = self._pools.setdefault(pool, _PoolOrders())
        if known.task is None and self._now_s() >= known.retry_s:
            self._note_failure(known, pool, code)

    async def drop_all(self) -> None:
        """Cancel what runs and forget all but the waits after failures: the epoch ended."""
        tasks = [one.task for one in self._pools.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        failing = {name: one for name, one in self._pools.items() if one.failures}
        self._pools = {name: one.with_backoff() for name, one in failing.items()}
        if tasks:
            await asyncio.wait(tasks, timeout=self._apply_s_max)

    async def _carry_out(
        self,
        pool: _PoolOrders,
        order: PoolOrder,
        actuator: Actuator,
        write: Callable[[], Awaitable[bool]],
    ) -> None:
        try:
            # The log first: a successor then knows each order that a platform may have.
            if not await asyncio.wait_for(write(), self._apply_s_max):
                return
            await self._apply(order, actuator)
        except StaleEpochError as error:
            seen = await self._seen_epoch(order, actuator)
            code = UnexpectedAnswerError.code if seen is None else error.code
            self._note_failure(pool, order.pool, code)
            if seen is not None:
                self._on_stale(seen)
        except MillraceError as error:
            self._note_failure(pool, order.pool, error.code)
        except TimeoutError:
            self._note_failure(pool, order.pool, "log_unavailable")
        except Exception as error:  # noqa: BLE001  of an actuator: other pools go on
            _LOG.error("an actuator is defect", extra={"reason": type(error).__name__})
            self._note_failure(pool, order.pool, ActuatorError.code)
        else:
            pool.accepted, pool.accepted_s = replace(order, epoch=0, sequence=0), self._now_s()
            pool.accepted_by = actuator
            pool.failure, pool.failures, pool.retry_s = "", 0, 0.0
        finally:
            pool.task = None

    async def _apply(self, order: PoolOrder, actuator: Actuator) -> None:
        try:
            await asyncio.wait_for(actuator.apply(order), self._apply_s_max)
        except TimeoutError:
            raise ActuatorTimeoutError from None

    async def _seen_epoch(self, order: PoolOrder, actuator: Actuator) -> int | None:
        """Return the higher epoch that the platform has seen; None if it shows none.

        One pool's actuator, which errs, must not end the decisions about the others.
        """
        try:
            observed = await asyncio.wait_for(actuator.observe(order.pool), self._apply_s_max)
        except Exception as error:  # noqa: BLE001  of an actuator: other pools go on
            extra = {"pool": order.pool, "reason": type(error).__name__}
            _LOG.warning("a newer epoch is not shown", extra=extra)
            return None
        is_newer = order.epoch < observed.epoch <= order.epoch + EPOCH_LEAP_MAX
        return observed.epoch if is_newer else None

    def _note_failure(self, pool: _PoolOrders, name: str, code: str) -> None:
        pool.failure = code
        backoff_s = _BACKOFF_S * 2 ** min(pool.failures, _DOUBLINGS_MAX)
        pool.failures += 1
        pool.retry_s = self._now_s() + min(BACKOFF_S_MAX, backoff_s)
        FAILURES.labels(code).inc()
        extra = {"pool": name, "code": code, "retry_s": min(BACKOFF_S_MAX, backoff_s)}
        _LOG.warning("an order was not carried out", extra=extra)
        self._on_failure(name)
