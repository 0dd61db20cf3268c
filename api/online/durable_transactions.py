"""What durable calls do in Postgres, each a transaction of its own: to commit, to find, to hold."""

from typing import Any
from uuid import UUID

import sqlalchemy as sa

from api.answers import ApiError
from core.states import TERMINAL_STATES, JobState
from jobs import idempotency
from jobs.days import job_day
from jobs.idempotency import Answer, Claim, Found
from jobs.refusals import KeyInFlightError
from jobs.requests import NewRequest, create_request, find_request, is_answered_well


class CallInFlightError(KeyInFlightError):
    """A request with this idempotency key is being answered. Try again."""

    def __init__(self, job_id: UUID) -> None:
        """The job of the call that has the key has no answer yet."""
        super().__init__()
        self.job_id = job_id


def commit_request(
    connection: sa.Connection, new: NewRequest, claim: Claim | None, accepted: Answer | None
) -> int | Answer:
    """Return the day of the new job, or what was answered before.

    `accepted` is the answer to the claim from now on; without it the key stands for the job. Raises
    KeyInFlightError, KeyReusedError.
    """
    answer = None if claim is None else find_answer(connection, claim)
    if answer is not None:
        return answer
    created_at = create_request(connection, new)
    if claim is not None and accepted is not None:
        idempotency.save(connection, claim, accepted, job_id=new.job_id)
    elif claim is not None:
        idempotency.hold(connection, claim, until_s=new.timeout_s, job_id=new.job_id)
    return job_day(created_at)


def find_answer(connection: sa.Connection, claim: Claim) -> Answer | None:
    """Return what was answered to an equal claim; None when this one is the first.

    Raises KeyInFlightError, KeyReusedError.
    """
    found = idempotency.look(connection, claim)
    if found is None:
        return None
    return found.answer or _answer_of_job(connection, claim.tenant_id, found)


def hold_stream(
    connection: sa.Connection, claim: Claim, timeout_s: float, refused: ApiError | None
) -> Answer | None:
    """Hold the key of a stream, or return what was streamed before.

    Raises `refused` where there is nothing to give again, KeyInFlightError, KeyReusedError.
    """
    found = idempotency.look(connection, claim)
    if found is not None:
        assert found.answer is not None  # a stream is no job
        return found.answer
    if refused is not None:
        raise refused
    idempotency.hold(connection, claim, until_s=timeout_s)
    return None


def _answer_of_job(connection: sa.Connection, tenant_id: UUID, found: Found) -> Answer | None:
    """Return the answer of a key's job; None when it has none that may be given again.

    Raises CallInFlightError while the job runs and its deadline is not past.
    """
    row: sa.Row[Any] = find_request(connection, tenant_id, found.job_id)
    if is_answered_well(row):
        headers = (("content-type", "application/json"),)
        return Answer(row.status_code, row.body or b"", headers, row.body_key)
    is_open = row.outcome is None and JobState(row.state) not in TERMINAL_STATES
    if is_open and row.close_reason is None and not row.is_past:
        raise CallInFlightError(row.id)
    return None
