"""The health of this host as its present process knows it: whether the host has proven itself.

A host whose last processes ended has to serve for a while before a crash is held against an item.
"""

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

from msgspec.structs import replace

from core.ids import new_uuid
from gpu_consumers.quarantine.host_history import SERVED_ROUNDS, TRUSTED, HostVerdict
from topics.records.attempts import BatchAttempt


@dataclass(slots=True, kw_only=True, eq=False)
class HostHealth:
    """The verdict on the host, and whether this process has proven it. For one event loop.

    Without a verdict the host counts as proven.
    """

    host_id: str = ""
    verdict: HostVerdict = field(default_factory=HostVerdict)
    process_id: UUID = field(default_factory=new_uuid)
    running: dict[UUID, BatchAttempt] = field(default_factory=dict)
    """The attempts that are recorded as running in this process."""

    _is_proven: asyncio.Event = field(default_factory=asyncio.Event)

    _items_to_serve: int = 0
    has_served: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if not self.verdict.proof_s:
            self._is_proven.set()

    def start_serving(self, concurrency: int = 0) -> None:
        """The process is ready: from now on it proves its host."""
        self._items_to_serve = SERVED_ROUNDS * concurrency
        asyncio.get_running_loop().call_later(self.verdict.proof_s, self._is_proven.set)

    def record_answers(self, count: int) -> None:
        """Count items that the engine has answered."""
        self._items_to_serve -= count
        if self._items_to_serve <= 0:
            self.has_served.set()

    @property
    def present_verdict(self) -> HostVerdict:
        """The verdict, unless this process has proven the host since."""
        return TRUSTED if self._is_proven.is_set() else self.verdict

    @property
    def is_failing(self) -> bool:
        """Whether a crash now speaks against the host and not against the items."""
        return self.present_verdict.is_failing

    async def wait_until_proven(self) -> None:
        """Wait until this process has served for `proof_s`."""
        await self._is_proven.wait()

    def stamp(self, attempt: BatchAttempt) -> BatchAttempt:
        """Return the attempt with this process and host as its owner."""
        return replace(
            attempt,
            host_id=self.host_id,
            process_id=self.process_id,
            host_is_failing=self.is_failing,
        )
