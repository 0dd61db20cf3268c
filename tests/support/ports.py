"""Ports for the server processes of tests."""

import random
import uuid
from pathlib import Path

from cli.stack.processes.ports import reserve_ports


def free_port(folder: Path) -> int:
    """Reserve a port until this process ends, so that a server can listen on it seconds later.

    It is below the kernel's ephemeral ports. `folder` gets a file with the port.
    """
    ports = reserve_ports(folder / f"port-{uuid.uuid4().hex}.json", ("server",), random.Random())
    return ports["server"]
