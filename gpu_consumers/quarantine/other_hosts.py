"""Waits until another host has served after an item crashed alone on it.

The item would otherwise have to crash a process of this host, too, before it is charged.
"""

import asyncio
from typing import Final
from uuid import UUID

from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.host_history import LONG_LIFE_S, successors

_POLL_S: Final = 2.0

SUCCESSOR_S_MAX: Final = LONG_LIFE_S + 30.0
"""How long the other host may have no new process: a process that lives for `LONG_LIFE_S` has
served, and one that loads a model starts within the rest."""

WAIT_S_MAX: Final = 600.0
"""How long it may start one process after the other without one that has served."""


class OtherHosts:
    """The waits for other hosts of one process. For one event loop."""

    def __init__(self, log: AttemptLog) -> None:
        self._log = log
        self._given_up: set[str] = set()

    async def wait_until_served(self, host_id: str, crashed: UUID) -> bool:
        """Return True once a successor of process `crashed` on the host has served.

        Return False if the host does not come back in time; then at once for its other items.
        """
        loop = asyncio.get_running_loop()
        last_s = loop.time() + WAIT_S_MAX
        deadline_s = loop.time() + SUCCESSOR_S_MAX
        known: set[UUID] = set()
        while host_id not in self._given_up:
            found = successors(await self._log.read_latest(), crashed)
            if any(found.values()):
                return True
            now_s = loop.time()
            if not found.keys() <= known:
                known |= found.keys()
                deadline_s = min(last_s, now_s + SUCCESSOR_S_MAX)
            if now_s >= deadline_s:
                self._given_up.add(host_id)
            else:
                await asyncio.sleep(_POLL_S)
        return False
