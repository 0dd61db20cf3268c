"""Reserves loopback ports for the processes of a stack."""

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
"""Below the kernel's ephemeral ports, so that no outgoing connection uses them."""

TRIES_MAX = 200
_reserved: set[int] = set()
"""The ports that this process has reserved until it ends."""
_ANSWER_S_MAX = 2.0


def reserve_ports(path: Path, names: tuple[str, ...], rng: random.Random) -> Mapping[str, int]:
    """Return one free port for each name: those in `path` if all are still free, else new ones.

    New ports are written to `path`; a damaged file is replaced. No other stack on the machine gets
    these ports while this process lives, even before a server listens. Raises OSError when no port
    is free.
    """
    stored = _ports_in(path)
    if set(stored) == set(names) and all(
        is_free(port) and _reserve(port) for port in stored.values()
    ):
        return stored
    ports = dict(zip(names, _free_ports(len(names), rng), strict=True))
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(ports))
    partial.replace(path)
    return ports


def _ports_in(path: Path) -> dict[str, int]:
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


def is_listening(port: int) -> bool:
    """Whether a server listens on `port`."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def is_api_ready(port: int) -> bool:
    """Whether the API on `port` is ready."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S_MAX)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _reserve(port: int) -> bool:
    """Reserve `port` among stacks; False when another one has reserved it.

    Binds an abstract Unix socket (unix(7)) with the port's name. It belongs to the same network
    namespace as the port, and the kernel releases it with the process.
    """
    if port in _reserved:
        return True
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0millrace-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # open until the process ends
    _reserved.add(port)
    return True


def _free_ports(count: int, rng: random.Random) -> list[int]:
    candidates = rng.sample(range(LOWEST, HIGHEST), TRIES_MAX)
    free = (p for p in candidates if p not in _reserved and is_free(p) and _reserve(p))
    ports = list(islice(free, count))
    if len(ports) < count:
        raise OSError("no free port on the loopback address")
    return ports
