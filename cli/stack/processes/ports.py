"""Chooses and probes ports on the loopback address."""

import http
import http.client
import json
import random
import socket
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

_Port: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65_535)]

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
"""Below the ephemeral ports of the kernel, so that no outgoing connection uses these."""

CANDIDATES_MAX = 200
_reserved: set[int] = set()
"""The ports that this process has reserved; it keeps them until it ends."""
_READYZ_TIMEOUT_S = 2.0


def reserve_ports(path: Path, names: tuple[str, ...], rng: random.Random) -> Mapping[str, int]:
    """Return one free port for each name and reserve it against other stacks of this machine.

    Returns the ports saved at `path` if all of them are still free, new ones otherwise, which it
    saves there. A damaged file counts as empty. The reservation lasts as long as this process, so
    the servers may start listening much later. Raises OSError when no port is free.
    """
    saved = _read_ports(path)
    if set(saved) == set(names) and all(
        is_free(port) and _reserve(port) for port in saved.values()
    ):
        return saved
    ports = dict(zip(names, _free_ports(len(names), rng), strict=True))
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(ports))
    partial.replace(path)
    return ports


def _read_ports(path: Path) -> dict[str, int]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Port])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def accepts_connections(port: int) -> bool:
    """Whether a server listens on `port`."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def is_api_ready(port: int) -> bool:
    """Whether `/readyz` of the API on `port` answers 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_READYZ_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _reserve(port: int) -> bool:
    """Reserve `port`; False when another process has reserved it.

    The reservation is an abstract Unix socket (unix(7)) named after the port: it belongs to the
    same network namespace as the port, and the kernel removes it when the process ends.
    """
    if port in _reserved:
        return True
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0millrace-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # stays open until the process ends
    _reserved.add(port)
    return True


def _free_ports(count: int, rng: random.Random) -> list[int]:
    candidates = rng.sample(range(LOWEST, HIGHEST), CANDIDATES_MAX)
    free = (p for p in candidates if p not in _reserved and is_free(p) and _reserve(p))
    ports = list(islice(free, count))
    if len(ports) < count:
        raise OSError("no free port on the loopback address")
    return ports
