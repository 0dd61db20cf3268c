"""What a drill is given."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.checkers.executions import Start
from chaos.clients.client import Client
from chaos.clients.history import Recorder
from chaos.errors import DrillError
from chaos.installations.installation import Installation
from chaos.installations.recording_upstream import RecordingUpstream
from chaos.reports.measures import Measure

MODEL = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillContext:
    """One trial: where it runs, from which seed, and how large it is."""

    installation: Installation
    recorder: Recorder
    seed: int
    long: bool
    work: Path
    note: Callable[[str], None]
    upstream: RecordingUpstream | None = None

    def starts(self, name: str) -> Callable[[], list[Start]]:
        """Return what tells the executions of a job's items so far, by the name in their texts."""
        upstream = self.recording()
        return lambda: upstream.starts(name)

    def recording(self) -> RecordingUpstream:
        """Return the upstream that notes executions. Raises DrillError where there is none."""
        if self.upstream is None:
            raise DrillError("this installation has no upstream that notes executions")
        return self.upstream

    def client(self, name: str, *, host: str | None = None) -> Client:
        """Return a client of one host, or of all in turn."""
        hosts = self.installation.hosts
        urls = [hosts[host].url] if host else [found.url for found in hosts.values()]
        return Client(name, urls, next(iter(hosts.values())).key, self.recorder)

    def size(self, full: int, quick: int) -> int:
        """Return how much of something this trial has."""
        return full if self.long else quick


Drill = Callable[[DrillContext], Iterable[Measure]]
"""Yields what it finds when it finds it, so that nothing of it is lost when it breaks off."""
