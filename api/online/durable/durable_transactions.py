"""What durable calls do in Postgres, each a transaction of its own: to commit, and to hold."""

import sqlalchemy as sa

from api.http.responses import ApiError
from jobs.store import idempotency
from jobs.store.days import job_day
from jobs.store.idempotency import Answer, Claim
from jobs.store.single_requests import NewRequest, create_request


def commit_request(
    connection: sa.Connection, new: NewRequest, claim: Claim | None, accepted: Answer | None
) -> int | Answer:
    """Return the day of the new job, or what was answered before.

    `accepted` is the answer to the claim from now on; without it the key stands for the job. Raises
    KeyInFlightError, KeyReusedError.
    """
    answer = None if claim is None else idempotency.look(connection, claim)
    if answer is not None:
        return answer
    created_at = create_request(connection, new)
    if claim is not None and accepted is not None:
        idempotency.save(connection, claim, accepted, job_id=new.job_id)
    elif claim is not None:
        idempotency.hold(connection, claim, until_s=new.timeout_s, job_id=new.job_id)
    return job_day(created_at)


def hold_stream(
    connection: sa.Connection, claim: Claim, timeout_s: float, refused: ApiError | None
) -> Answer | None:
    """Hold the key of a stream, or return what was streamed before.

    Raises `refused` where there is nothing to give again, KeyInFlightError, KeyReusedError.
    """
    answer = idempotency.look(connection, claim)
    if answer is not None:
        return answer
    if refused is not None:
        raise refused
    idempotency.hold(connection, claim, until_s=timeout_s)
    return None
