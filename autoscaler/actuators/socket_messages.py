"""Messages between the actuator `embedded` and the process of `millrace up`.

One request a connection over a Unix socket: a line of JSON of at most `LINE_BYTES_MAX` bytes, and a
line of JSON as the answer. The file mode of the socket says who may connect.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from autoscaler.actuators.actuator import KindCount, PoolOrder

LINE_BYTES_MAX: Final = 64 * 1024
"""Longest request and answer, its newline included."""

_ADDRESS_BYTES_MAX: Final = 107
"""Longest path in an address of a Unix socket on Linux (unix(7))."""

PoolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100)]


class ApplyRequest(Struct, frozen=True, tag_field="action", tag="apply"):
    """Carry out an order."""

    order: PoolOrder


class ObserveRequest(Struct, frozen=True, tag_field="action", tag="observe"):
    """Say what a pool is told to run."""

    pool: PoolName


SocketRequest: TypeAlias = ApplyRequest | ObserveRequest


class ReplicaAnswer(Struct, frozen=True, kw_only=True):
    """A replica that the process runs, with how often it was started again."""

    replica_id: str
    restarts: int


class PoolAnswer(Struct, frozen=True, kw_only=True):
    """What a pool is told to run, and the highest epoch of its orders."""

    kinds: tuple[KindCount, ...]
    epoch: int
    replicas: tuple[ReplicaAnswer, ...] = ()  # those that exist, a crashing one included


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """Why a request was not carried out: a stable code and a sentence."""

    error: str
    message: str


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address for the socket at `path`, also where the path is too long for one.

    Raises OSError when the folder of a long path does not exist.
    """
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
