"""A scaling socket whose requests are carried out by a thread that stands for the supervisor."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from autoscaler.actuators.actuator import PoolOrder, StaleEpochError, UnknownPoolError
from autoscaler.actuators.socket_messages import PoolAnswer
from cli.stack.scaling_socket import ScalingSocket


class Pools(Protocol):
    """What carries orders out."""

    def apply(self, order: PoolOrder) -> PoolAnswer:
        """Carry out an order."""

    def observe(self, pool: str) -> PoolAnswer:
        """Return what a pool is told to run."""


class RecordedPools:
    """Pools that carry out orders for `pool` by writing them down."""

    def __init__(self) -> None:
        self.orders: list[PoolOrder] = []
        self.threads: set[int] = set()

    def apply(self, order: PoolOrder) -> PoolAnswer:
        self.threads.add(threading.get_ident())
        if order.epoch < self.observe(order.pool).epoch:
            raise StaleEpochError("The pool follows a newer epoch.")
        self.orders.append(order)
        return self.observe(order.pool)

    def observe(self, pool: str) -> PoolAnswer:
        if pool != "pool":
            raise UnknownPoolError("The pool is not one of this stack.")
        if not self.orders:
            return PoolAnswer(kinds=(), epoch=0)
        return PoolAnswer(kinds=self.orders[-1].kinds, epoch=self.orders[-1].epoch)


@contextmanager
def scaling_socket(
    path: Path, pools: Pools, *, read_s_max: float = 30.0, answer_s_max: float = 30.0
) -> Iterator[ScalingSocket]:
    """Serve `path`; nothing carries requests out, see `carried_out`."""
    with ScalingSocket(
        path,
        apply=pools.apply,
        observe=pools.observe,
        read_s_max=read_s_max,
        answer_s_max=answer_s_max,
    ) as served:
        yield served


@contextmanager
def carried_out(answer_waiting: Callable[[], None]) -> Iterator[int]:
    """Carry out requests in a thread during the block; yields the id of the thread."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(0.005):
            answer_waiting()

    thread = threading.Thread(target=loop)
    thread.start()
    assert thread.ident is not None
    try:
        yield thread.ident
    finally:
        stop.set()
        thread.join()
