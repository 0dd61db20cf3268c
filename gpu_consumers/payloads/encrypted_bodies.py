"""Bodies of jobs that retain nothing: decrypted for the engine alone, encrypted for the log.

Other jobs pay one look at a field of their part of a batch.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from core.clock import Clock
from core.outcomes import Outcome
from gpu_consumers.engines.error_answers import PERMANENT_CODES, error_answer, error_code_of
from gpu_consumers.inflight.online_call import OnlineCall
from gpu_consumers.payloads.bodies import load_body
from storage.crypto.body_ciphers import BodyCipher, Place, Way
from storage.crypto.data_keys import DataKeys, KeyGoneError
from storage.objects.object_store import ObjectStore
from storage.objects.whole_objects import read_object
from topics.records.records import Item, ItemOutcome, JobRef

BODY_UNREADABLE: Final = error_answer(
    500,
    "The body of this request cannot be decrypted: its key is gone, or another's.",
    type_="server_error",
    code="body_unreadable",
)

_OUR_CODES: Final = PERMANENT_CODES | {
    "answer_missing",
    "answer_not_events",
    "answer_not_http",
    "answer_not_json",
    "item_timeout",
    "simulated_fault",
    "stream_unsupported",
    "unknown_endpoint",
    "upstream_disconnected",
}
"""Codes that may stand beside an encrypted answer. Others are an upstream's own words."""


class EncryptedBodies:
    """What a replica does with bodies of jobs that name a data key."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        """Know no key yet."""
        self._objects, self._keys = objects, DataKeys(objects, clock)

    async def load(self, job: JobRef, item: Item) -> bytes:
        """Return what to ask for an item that is encrypted or travels by reference.

        Raises KeyGoneError, BodyUnreadableError, InputUnreadableError, and what a store raises.
        """
        if item.length:
            return await asyncio.to_thread(load_body, self._objects, job, item)
        cipher = await self._cipher(job)
        return cipher.decrypt(item.body, Place(job.job_id, Way.IN, item.index))

    async def open_call(self, call: OnlineCall) -> bytes:
        """Return what to ask for a call that names a key, and leave its cipher with it.

        Raises KeyGoneError, BodyUnreadableError, and what a store raises.
        """
        job, item = call.job, call.item
        call.cipher = await self._cipher(job)
        body = item.body
        if item.length:
            body = await asyncio.to_thread(
                read_object, self._objects, job.input_key, length=item.length
            )
        return call.cipher.decrypt(body, Place(job.job_id, Way.IN, item.index))

    def knows(self, job: JobRef) -> bool:
        """Whether the key of a job is in memory, so that no store is needed."""
        return self._keys.known(job.key_name) is not None

    async def hidden(self, job: JobRef, outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
        """Return outcomes that say nothing to whoever lacks the key. Raises what a store raises.

        Without the key nobody could read an answer: then there is none.
        """
        try:
            cipher = await self._cipher(job)
        except KeyGoneError:
            return [_unanswered(outcome) for outcome in outcomes]
        return [_hidden(job, outcome, cipher) for outcome in outcomes]

    async def _cipher(self, job: JobRef) -> BodyCipher:
        known = self._keys.known(job.key_name)
        if known is not None:
            return known
        return await asyncio.to_thread(self._keys.load, job.key_name)


def _hidden(job: JobRef, outcome: ItemOutcome, cipher: BodyCipher) -> ItemOutcome:
    """The writer cannot look for a code in the body, so it is beside it when it is one of ours."""
    code = outcome.error_code
    if outcome.outcome is Outcome.FAILED and code is None:
        found = error_code_of(outcome.body)
        code = found if found in _OUR_CODES else None
    place = Place(job.job_id, Way.OUT, outcome.index)
    body = outcome.body and cipher.encrypt(outcome.body, place)
    return msgspec.structs.replace(outcome, custom_id=None, body=body, error_code=code)


def _unanswered(outcome: ItemOutcome) -> ItemOutcome:
    return msgspec.structs.replace(
        outcome,
        custom_id=None,
        outcome=Outcome.FAILED,
        status_code=0,
        body=b"",
        error_code=KeyGoneError.code,
        error_message="The key of this request's body is gone.",
        retryable=False,
    )
