"""Ports for servers that a test starts as processes of their own."""

import random
import uuid
from pathlib import Path

from cli.stack.processes.ports import reserve_ports


def free_port(folder: Path) -> int:
    """Return a port that nobody else takes before our server listens, seconds later.

    It is below those that the kernel hands out, and no other test or stack chooses it while this
    process lives. `folder` gets a file that says so.
    """
    ports = reserve_ports(folder / f"port-{uuid.uuid4().hex}.json", ("server",), random.Random())
    return ports["server"]
