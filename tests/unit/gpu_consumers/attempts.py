"""The log of attempts, in memory."""

import asyncio
from uuid import UUID

from topics.records.records import BatchAttempt


class Attempts:
    """What is said of batches; outlives a replica, as the topic does."""

    def __init__(self) -> None:
        self.known: dict[UUID, BatchAttempt] = {}
        self.said: list[BatchAttempt] = []

    async def before(self, batch_id: UUID, generation: int) -> BatchAttempt | None:
        await asyncio.sleep(0)
        return self.known.get(batch_id)

    async def say(self, attempt: BatchAttempt) -> None:
        await asyncio.sleep(0)
        self.known[attempt.batch_id] = attempt
        self.said.append(attempt)

    async def forget(self, batch_id: UUID) -> None:
        await asyncio.sleep(0)
        self.known.pop(batch_id, None)
