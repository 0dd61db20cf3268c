"""Idempotency keys: one effect and one answer for any number of equal POSTs.

    look (locks the key) ─► [an answer: give it again] or [do the work] ─► save, one transaction

A key is locked until its transaction ends, and whoever finds it locked is told to try again, so no
twin runs beside another. What a transaction saves is committed with its effect.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.ids import new_uuid
from core.states import TERMINAL_STATES, JobState
from jobs.errors import IdempotencyKeyInFlightError, IdempotencyKeyReusedError, RequestNotFoundError
from jobs.store.single_requests import find_request, is_answered_well
from jobs.tables.idempotency import idempotency_keys
from storage.postgres.intervals import seconds

KEY_CHARS_MAX: Final = 255

MODEL_VERSION: Final = "x-millrace-model-version"
"""The header of an answer that says who gave it, also when it is given again."""

_keys: Final = idempotency_keys.c
_PRIMARY: Final = [_keys.tenant_id, _keys.scope, _keys.key]
_JSON: Final = (("content-type", "application/json"),)
_NOW: Final = sa.func.clock_timestamp()  # not now(): a transaction may have waited

# Two names with one hash cost a 409 at most.
_TRY_LOCK: Final = sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")
_LOCK: Final = sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


class KeyScope(StrEnum):
    """Who made a key."""

    CLIENT = "client"  # the header Idempotency-Key
    RETRY = "retry"  # we, from what a client repeats when it lost an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyClaim:
    """A POST that shall have its effect once."""

    tenant_id: UUID
    scope: KeyScope
    key: str
    route: str  # method and path
    body_sha256: bytes = field(repr=False)
    keep_s: float  # how long its answer may be given again
    attempt: int = 0  # tries that its client has made before, as it says
    age_s: Callable[[], float] = field(default=float, compare=False)
    """How long ago it arrived here; asked when it is judged, however long it waited for that."""
    holder: UUID = field(default_factory=new_uuid)

    @property
    def may_repeat(self) -> bool:
        """Whether its client may have asked before: it said so, or has a key for that."""
        return self.scope is KeyScope.CLIENT or self.attempt > 0


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer as it is given again, byte for byte."""

    status_code: int
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    body_key: str | None = None  # object that holds a large body; `body` is empty


def version_header(model: str, version: str) -> tuple[str, str]:
    """Return the header that names who answered."""
    return MODEL_VERSION, f"{model}@{version}"


def answer_once(
    connection: sa.Connection,
    claim: IdempotencyClaim | None,
    work: Callable[[sa.Connection], StoredAnswer],
) -> tuple[StoredAnswer, bool]:
    """Return what `work` answers, or answered to an equal claim before, and whether it is old.

    Call in the transaction of the work. What `work` raises is not saved, and neither is an error
    that it returns. Raises IdempotencyKeyInFlightError, IdempotencyKeyReusedError.
    """
    old = None if claim is None else find_answer(connection, claim)
    if old is not None:
        return old, True
    answer = work(connection)
    if claim is not None and answer.status_code < 400:
        save_answer(connection, claim, answer)
    return answer, False


def find_answer(connection: sa.Connection, claim: IdempotencyClaim) -> StoredAnswer | None:
    """Lock the key until the transaction ends and return what was answered to an equal claim.

    None: the key is free, so the claim may go on. So is a key whose call failed, is past its
    deadline or was removed since, whatever was asked under it. Raises IdempotencyKeyInFlightError,
    IdempotencyKeyReusedError.
    """
    _lock(connection, claim)
    row = connection.execute(_row_query(claim)).one_or_none()
    if row is None or row.is_over or not _is_repeat(claim, row):
        return None
    answer, is_in_flight = _held_for(connection, row)
    if answer is None and not is_in_flight:
        return None
    running = row.job_id if is_in_flight else None
    if row.route != claim.route or row.body_sha256 not in {None, claim.body_sha256}:
        raise IdempotencyKeyReusedError(running)
    if answer is None:
        raise IdempotencyKeyInFlightError(running)
    return answer


def may_have_answer(connection: sa.Connection, claim: IdempotencyClaim) -> bool:
    """Whether a body that was not read yet may be one that was answered already."""
    same = [_keys.tenant_id == claim.tenant_id, _keys.scope == claim.scope, _keys.expires_at > _NOW]
    if claim.scope is KeyScope.CLIENT:
        same.append(_keys.key == claim.key)
    return bool(connection.scalar(sa.select(sa.exists().where(*same))))


def save_answer(
    connection: sa.Connection,
    claim: IdempotencyClaim,
    answer: StoredAnswer,
    *,
    job_id: UUID | None = None,
) -> None:
    """Give `answer` to every equal claim from now on; after `find_answer`, in its transaction."""
    values = _answer_values(answer)
    _put(connection, claim, {**values, "job_id": job_id, "in_flight_until": _NOW})


def mark_in_flight(
    connection: sa.Connection,
    claim: IdempotencyClaim,
    *,
    until_s: float,
    job_id: UUID | None = None,
) -> None:
    """Note that the claim is being answered, for `until_s` seconds or until it is saved.

    With a job, its answer is the job's.
    """
    until = _NOW + seconds(until_s)
    _put(connection, claim, {"state": "in_flight", "job_id": job_id, "in_flight_until": until})


def complete_in_flight(
    connection: sa.Connection, claim: IdempotencyClaim, answer: StoredAnswer
) -> bool:
    """Save the answer to a claim that is held; False when another has the key now."""
    changed = connection.execute(
        sa.update(idempotency_keys).where(*_held_by(claim)).values(**_answer_values(answer))
    )
    return changed.rowcount > 0


def release_key(connection: sa.Connection, claim: IdempotencyClaim) -> None:
    """Free the key of a claim that is held and was not answered well."""
    connection.execute(sa.delete(idempotency_keys).where(*_held_by(claim)))


def _lock(connection: sa.Connection, claim: IdempotencyClaim) -> None:
    """A first try never hears that a key of ours is locked: it may be a second equal request,
    which its client would then repeat, and which would then count as a repeat of the other.
    """
    name = {"name": f"{claim.tenant_id.hex} {claim.scope} {claim.key}"}
    if claim.scope is KeyScope.RETRY and claim.attempt == 0:
        connection.execute(_LOCK, name)
    elif not connection.scalar(_TRY_LOCK, name):
        raise IdempotencyKeyInFlightError


def _row_query(claim: IdempotencyClaim) -> sa.Select[Any]:
    arrived = _NOW - seconds(claim.age_s())
    return sa.select(
        idempotency_keys,
        (_keys.expires_at <= _NOW).label("is_over"),
        (_keys.in_flight_until > _NOW).label("is_in_flight"),
        (_keys.created_at >= arrived).label("is_overtaken"),
    ).where(_keys.tenant_id == claim.tenant_id, _keys.scope == claim.scope, _keys.key == claim.key)


def _held_for(connection: sa.Connection, row: sa.Row[Any]) -> tuple[StoredAnswer | None, bool]:
    """Return the answer that a key stands for, and whether there may yet be one."""
    if row.state == "saved":
        headers = tuple((name, value) for name, value in row.headers or ())
        return StoredAnswer(row.status_code, row.body or b"", headers, row.body_key), False
    if row.job_id is None:
        return None, row.is_in_flight
    try:
        job = find_request(connection, row.tenant_id, row.job_id)
    except RequestNotFoundError:  # it aged faster than its key
        return None, False
    if is_answered_well(job):
        headers = (*_JSON, version_header(job.model, job.model_version))
        return StoredAnswer(job.status_code, job.body or b"", headers, job.body_key), False
    is_open = job.outcome is None and JobState(job.state) not in TERMINAL_STATES
    return None, is_open and job.close_reason is None and not job.is_past


def _is_repeat(claim: IdempotencyClaim, row: sa.Row[Any]) -> bool:
    """Whether the claim repeats what the row answers.

    A key of a client says so. One that we derived says only that two requests are equal: the
    second is a repeat when its client says that it tries again, or when such a try overtook it.
    """
    if claim.scope is KeyScope.CLIENT:
        return True
    return claim.attempt > 0 or (row.attempt > 0 and row.is_overtaken)


def _put(connection: sa.Connection, claim: IdempotencyClaim, values: dict[str, object]) -> None:
    fresh: dict[str, object] = {
        "route": claim.route,
        "body_sha256": claim.body_sha256,
        "holder": claim.holder,
        "attempt": claim.attempt,
        "status_code": None,
        "headers": sa.null(),
        "body": None,
        "body_key": None,
        "created_at": _NOW,
        "expires_at": _NOW + seconds(claim.keep_s),
        **values,
    }
    statement = insert(idempotency_keys).values(
        tenant_id=claim.tenant_id, scope=claim.scope, key=claim.key, **fresh
    )
    set_ = {name: statement.excluded[name] for name in fresh}
    connection.execute(statement.on_conflict_do_update(index_elements=_PRIMARY, set_=set_))


def _answer_values(answer: StoredAnswer) -> dict[str, object]:
    return {
        "state": "saved",
        "status_code": answer.status_code,
        "headers": [list(pair) for pair in answer.headers],
        "body": answer.body,
        "body_key": answer.body_key,
    }


def _held_by(claim: IdempotencyClaim) -> list[sa.ColumnElement[bool]]:
    return [
        _keys.tenant_id == claim.tenant_id,
        _keys.scope == claim.scope,
        _keys.key == claim.key,
        _keys.holder == claim.holder,
        _keys.state == "in_flight",
    ]
