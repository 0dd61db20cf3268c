"""Ports on the loopback address for the parts of the stack."""

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
"""Below the ports that the kernel hands out by itself, so no outgoing connection takes ours."""

TRIES_MAX = 200
_claimed: set[int] = set()
"""The ports that this process keeps other stacks away from until it ends."""
_ANSWER_S_MAX = 2.0


def reserve_ports(path: Path, names: tuple[str, ...], rng: random.Random) -> Mapping[str, int]:
    """Return one free port a name: those in `path` while all are still free, else new ones.

    A damaged file holds none. The choice is written to `path`, and no other stack of the machine
    chooses these ports while this process lives: its servers may listen long after. Raises OSError
    when no port is free.
    """
    kept = _ports_in(path)
    if set(kept) == set(names) and all(is_free(port) and _claim(port) for port in kept.values()):
        return kept
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


def accepts_connections(port: int) -> bool:
    """Whether somebody listens on `port`."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def is_api_ready(port: int) -> bool:
    """Whether the API on `port` says that it can serve."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S_MAX)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _claim(port: int) -> bool:
    """Keep other stacks from choosing `port`; False when one of them has it.

    By a socket of that name outside the file system (unix(7), abstract): it lies in the same
    network as the port, and the kernel drops it with the process, however that ends.
    """
    if port in _claimed:
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0millrace-port-{port}")
    except OSError:
        claim.close()
        return False
    claim.detach()  # open for as long as we live
    _claimed.add(port)
    return True


def _free_ports(count: int, rng: random.Random) -> list[int]:
    tried = rng.sample(range(LOWEST, HIGHEST), TRIES_MAX)
    free = (p for p in tried if p not in _claimed and is_free(p) and _claim(p))
    ports = list(islice(free, count))
    if len(ports) < count:
        raise OSError("no free port on the loopback address")
    return ports
