"""What a drill receives."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from chaos.checkers.executions import ItemEvent
from chaos.clients.client import Client
from chaos.clients.history import Recorder
from chaos.errors import DrillError
from chaos.installations.installation import Installation
from chaos.installations.recording_upstream import RecordingUpstream
from chaos.measures import Measure
from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant

MODEL = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillContext:
    """One round of a drill: its installation, seed and size."""

    installation: Installation
    recorder: Recorder
    seed: int
    long: bool
    work: Path
    note: Callable[[str], None]
    upstream: RecordingUpstream | None = None

    @property
    def engine(self) -> sa.Engine:
        """The installation's database, without the proxies."""
        return self.installation.engine

    def starts(self, name: str) -> Callable[[], list[ItemEvent]]:
        """Return a function that reads the executions of items whose text starts with `name`."""
        upstream = self.recording()
        return lambda: upstream.starts(name)

    def recording(self) -> RecordingUpstream:
        """Return the recording upstream. Raises DrillError without one."""
        if self.upstream is None:
            raise DrillError("this installation has no upstream that records executions")
        return self.upstream

    def client(self, name: str, *, host: str | None = None) -> Client:
        """Return a client of one host, or of all hosts round-robin."""
        hosts = self.installation.hosts
        urls = [hosts[host].url] if host else [found.url for found in hosts.values()]
        return Client(name, urls, next(iter(hosts.values())).key, self.recorder)

    def create_tenant_client(self, name: str) -> Client:
        """Create another tenant and return a client with its key."""
        with self.engine.begin() as connection:
            tenant = create_tenant(connection, f"{name}-{uuid4().hex[:8]}")
            secret = create_key(connection, tenant, "chaos").secret
        client = self.client(name)
        client.key = secret
        return client

    def size(self, full: int, quick: int) -> int:
        """Return the size of a long run or of a quick one."""
        return full if self.long else quick


Drill = Callable[[DrillContext], Iterable[Measure]]
"""Yields each measure as soon as it is known, so that none is lost when the drill aborts."""
