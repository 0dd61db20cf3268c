"""Bodies of a batch that the object store keeps, or encrypts under a key that it keeps.

The store is part of the pool: while it is away, what needs it goes back and no item is charged.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from core.clock import Clock
from core.errors import Disposition, MillraceError
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.inflight.batch_run import BatchRun
from gpu_consumers.inflight.outcomes import INPUT_MISSING
from gpu_consumers.payloads.bodies import ANSWER_BYTES_MAX, store_body
from gpu_consumers.payloads.encrypted_bodies import BODY_UNREADABLE, EncryptedBodies
from storage.objects.object_store import ObjectStore
from topics.records.records import ItemOutcome, JobRef

_LOG: Final = logging.getLogger(__name__)


class StoredBodies:
    """Loads what is asked and stores what was answered, for batches in execution."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        """Know no key yet."""
        self._objects = objects
        self._encrypted = EncryptedBodies(objects, clock)

    async def load(
        self, run: BatchRun, positions: Sequence[int], refuse: Callable[[int, EngineAnswer], None]
    ) -> dict[int, bytes]:
        """Return what to ask, by position; `refuse` those whose body is not what was stored.

        Without the items that the store does not give.
        """
        bodies: dict[int, bytes] = {}
        for position in positions:
            job, item = run.items[position]
            if not (item.length or job.key_name):
                bodies[position] = item.body
            elif not run.store_away:
                try:
                    bodies[position] = await self._encrypted.load(job, item)
                except MillraceError as failure:
                    if _is_refusal(failure, run):
                        refuse(position, INPUT_MISSING if item.length else BODY_UNREADABLE)
        return bodies

    async def fit_for_log(
        self, run: BatchRun, job: JobRef, outcomes: list[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Return outcomes of one job as its records may hold them: encrypted, large bodies stored.

        Without those that need the store while it is away: their items are executed again.
        """
        if job.key_name and outcomes:
            outcomes = await self._hidden(run, job, outcomes)
        if any(len(outcome.body) > ANSWER_BYTES_MAX for outcome in outcomes):
            outcomes = await self._without_large_bodies(run, job, outcomes)
        return outcomes

    async def _hidden(
        self, run: BatchRun, job: JobRef, outcomes: list[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Encrypt; none where the store does not give the key."""
        if run.store_away and not self._encrypted.knows(job):
            return []
        try:
            return await self._encrypted.hidden(job, outcomes)
        except MillraceError as failure:
            if _is_refusal(failure, run):
                raise
            return []

    async def _without_large_bodies(
        self, run: BatchRun, job: JobRef, outcomes: list[ItemOutcome]
    ) -> list[ItemOutcome]:
        """Put bodies that fit no record into the store, under a name of this execution."""
        kept = []
        for outcome in outcomes:
            if len(outcome.body) <= ANSWER_BYTES_MAX:
                kept.append(outcome)
            elif not run.store_away:
                try:
                    key = await asyncio.to_thread(
                        store_body, self._objects, job.job_id, outcome.body
                    )
                    kept.append(msgspec.structs.replace(outcome, body=b"", body_key=key))
                except MillraceError as failure:
                    if _is_refusal(failure, run):
                        raise
        return kept


def _is_refusal(failure: MillraceError, run: BatchRun) -> bool:
    """Whether the item is at fault, not the store, which is then noted to be away.

    Raises what the process cannot go on with, a store that refuses our key for example.
    """
    if failure.disposition is Disposition.CRASH:
        raise failure
    run.store_away = failure.disposition is Disposition.RETRY
    if run.store_away:
        _LOG.warning("the object store is away", extra={"code": failure.code})
    return not run.store_away
