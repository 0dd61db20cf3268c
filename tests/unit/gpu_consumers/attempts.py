"""The log of attempts, in memory."""

import asyncio
from uuid import UUID

from topics.records.records import Attempt


class Attempts:
    """What is said of batches; outlives a replica, as the topic does."""

    def __init__(self) -> None:
        self.known: dict[UUID, Attempt] = {}
        self.said: list[Attempt] = []

    async def before(self, batch_id: UUID, generation: int) -> Attempt | None:
        await asyncio.sleep(0)
        return self.known.get(batch_id)

    async def say(self, attempt: Attempt) -> None:
        await asyncio.sleep(0)
        self.known[attempt.batch_id] = attempt
        self.said.append(attempt)

    async def forget(self, batch_id: UUID) -> None:
        await asyncio.sleep(0)
        self.known.pop(batch_id, None)
