"""What is answered to durable calls: 202 where no answer is there yet, and answers given again."""

from dataclasses import replace
from typing import Final
from uuid import UUID

import msgspec

from api import metrics
from api.http.responses import ApiError
from api.idempotency.idempotent_requests import REPLAYED
from api.online.calls import CompleteResponse
from api.online.send.store_threads import run_in_store_thread
from core.ids import SINGLE, public_id
from core.states import JobState
from jobs.store.idempotency import Answer, Scope, version_header
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore
from storage.objects.whole_objects import read_object
from topics.records.records import JobRef

_JSON: Final = ("content-type", "application/json")


def accepted_answer(job_id: UUID, public_url: str | None) -> Answer:
    """Return the 202 of a committed call: its answer will be found under the job."""
    name = public_id(SINGLE, job_id)
    place = f"{(public_url or '').rstrip('/')}/v1/jobs/{name}"
    status = JobState.IN_PROGRESS.value
    body = msgspec.json.encode({"id": name, "object": "job", "status": status})
    return Answer(202, body, (_JSON, ("location", place)))


def to_keep(answer: Answer, job: JobRef) -> Answer:
    """Return an answer to the call of `job` as it is kept: a version may follow that one's."""
    said = version_header(job.model, job.model_version)
    return replace(answer, headers=(*answer.headers, said))


async def given_again(answer: Answer, scope: Scope, objects: ObjectStore) -> CompleteResponse:
    """Return what was answered before to a key of `scope`.

    Raises ApiError (410) when its body is gone, and what a store raises.
    """
    metrics.REPLAYED.labels(scope.value).inc()
    if answer.body_key is not None:
        try:
            body = await run_in_store_thread(read_object, objects, answer.body_key)
        except ObjectMissingError:
            raise ApiError(410, "The answer is gone.", code="answer_gone") from None
        answer = Answer(answer.status_code, body, answer.headers)
    return finished(answer, is_old=True)


def finished(answer: Answer, *, is_old: bool) -> CompleteResponse:
    """Return an answer that is whole, as it is sent; an old one says so in a header."""
    pairs = [*answer.headers, REPLAYED] if is_old else [*answer.headers]
    headers = [(name.encode(), value.encode()) for name, value in pairs]
    return CompleteResponse(answer.status_code, answer.body, headers)
