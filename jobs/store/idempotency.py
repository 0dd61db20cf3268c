"""Idempotency keys: any number of equal POSTs have one effect and get one answer.

    find_answer (locks the key) ─► [replay the answer] or [do the work ─► save_answer] ─► commit

A key is locked until its transaction ends, and a concurrent request with a locked key gets a
"try again" error. So no two equal requests run at once. The answer is committed with its effect.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.ids import new_uuid
from core.shown_versions import version_in_full
from core.states import TERMINAL_STATES, JobState
from jobs.errors import IdempotencyKeyInFlightError, IdempotencyKeyReusedError, RequestNotFoundError
from jobs.store.single_requests import find_request, is_answered_well
from jobs.tables.idempotency import idempotency_keys
from storage.postgres.database_times import seconds

KEY_CHARS_MAX: Final = 255

MODEL_VERSION: Final = "x-millrace-model-version"
"""The response header that names the model version, also of a replayed answer."""

DEGRADED: Final = "x-millrace-degraded"
"""The response header that names what was changed of a call because of load, also of a replay."""

_keys: Final = idempotency_keys.c
_PRIMARY: Final = [_keys.tenant_id, _keys.scope, _keys.key]
_JSON: Final = (("content-type", "application/json"),)
_NOW: Final = sa.func.clock_timestamp()  # not now(): a transaction may have waited

# A hash collision of two names costs at most one 409.
_TRY_LOCK: Final = sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")
_LOCK: Final = sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")


class KeyScope(StrEnum):
    """The origin of a key."""

    CLIENT = "client"  # the header Idempotency-Key
    RETRY = "retry"  # derived by the API, from a request that a client SDK may retry


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyClaim:
    """A POST that shall have its effect once."""

    tenant_id: UUID
    scope: KeyScope
    key: str
    route: str  # method and path
    body_sha256: bytes = field(repr=False)
    keep_s: float  # how long its answer may be replayed
    attempt: int = 0  # earlier attempts, as stated by the client
    age_s: Callable[[], float] = field(default=float, compare=False)
    """Time since the request arrived, in seconds; read when the claim is checked."""
    holder: UUID = field(default_factory=new_uuid)

    @property
    def may_repeat(self) -> bool:
        """Whether this may be a repeated request: it has a client key, or is a stated retry."""
        return self.scope is KeyScope.CLIENT or self.attempt > 0


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer that is replayed byte for byte."""

    status_code: int
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    body_key: str | None = None  # object that holds a large body; `body` is empty


def version_header(model: str, version: str) -> tuple[str, str]:
    """Return the header that names the version that ran for `model`, the name in the request."""
    return MODEL_VERSION, version_in_full(model, version)


def replayed_headers(model: str, version: str, degraded: str | None) -> tuple[tuple[str, str], ...]:
    """Return the headers that describe a call in each replay of its answer."""
    named = version_header(model, version)
    return (named, (DEGRADED, degraded)) if degraded else (named,)


def answer_once(
    connection: sa.Connection,
    claim: IdempotencyClaim | None,
    work: Callable[[sa.Connection], StoredAnswer],
) -> tuple[StoredAnswer, bool]:
    """Return the answer of `work`, or of an earlier equal claim, and whether it is replayed.

    Call it in the transaction of the work. Errors that `work` raises or returns are not saved.
    Raises IdempotencyKeyInFlightError, IdempotencyKeyReusedError.
    """
    saved = None if claim is None else find_answer(connection, claim)
    if saved is not None:
        return saved, True
    answer = work(connection)
    if claim is not None and answer.status_code < 400:
        save_answer(connection, claim, answer)
    return answer, False


def find_answer(connection: sa.Connection, claim: IdempotencyClaim) -> StoredAnswer | None:
    """Lock the key until the transaction ends and return the answer to an equal claim, if any.

    None: the key is free, so the claim may proceed. A key is also free if its call failed, passed
    its deadline or was removed, whatever the request was. Raises IdempotencyKeyInFlightError,
    IdempotencyKeyReusedError.
    """
    _lock_key(connection, claim)
    row = connection.execute(_row_query(claim)).one_or_none()
    if row is None or row.is_expired or not _is_repeat(claim, row):
        return None
    answer, is_in_flight = _answer_of_row(connection, row)
    if answer is None and not is_in_flight:
        return None
    running = row.job_id if is_in_flight else None
    if row.route != claim.route or row.body_sha256 not in {None, claim.body_sha256}:
        raise IdempotencyKeyReusedError(running)
    if answer is None:
        raise IdempotencyKeyInFlightError(running)
    return answer


def may_have_answer(connection: sa.Connection, claim: IdempotencyClaim) -> bool:
    """Whether there may be an answer to a request whose body is not read yet."""
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
    """Save the answer to all equal claims, in the transaction of `find_answer`."""
    values = _answer_values(answer)
    _upsert(connection, claim, {**values, "job_id": job_id, "in_flight_until": _NOW})


def mark_in_flight(
    connection: sa.Connection,
    claim: IdempotencyClaim,
    *,
    until_s: float,
    job_id: UUID | None = None,
) -> None:
    """Record that the claim is in progress, for `until_s` seconds or until its answer is saved.

    With `job_id`, the answer is that of the job.
    """
    until = _NOW + seconds(until_s)
    _upsert(connection, claim, {"state": "in_flight", "job_id": job_id, "in_flight_until": until})


def complete_in_flight(
    connection: sa.Connection, claim: IdempotencyClaim, answer: StoredAnswer
) -> bool:
    """Save the answer to a claim in progress; return False if another claim has the key now."""
    changed = connection.execute(
        sa.update(idempotency_keys).where(*_is_claimed_by(claim)).values(**_answer_values(answer))
    )
    return changed.rowcount > 0


def release_key(connection: sa.Connection, claim: IdempotencyClaim) -> None:
    """Free the key of a claim in progress that failed."""
    connection.execute(sa.delete(idempotency_keys).where(*_is_claimed_by(claim)))


def _lock_key(connection: sa.Connection, claim: IdempotencyClaim) -> None:
    """Lock the key. A first attempt with a derived key waits for the lock instead of failing.

    It may be a second, equal request: after an error its client would retry it, and the retry would
    count as a repeat of the other request.
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
        (_keys.expires_at <= _NOW).label("is_expired"),
        (_keys.in_flight_until > _NOW).label("is_in_flight"),
        (_keys.created_at >= arrived).label("is_overtaken"),
    ).where(_keys.tenant_id == claim.tenant_id, _keys.scope == claim.scope, _keys.key == claim.key)


def _answer_of_row(connection: sa.Connection, row: sa.Row[Any]) -> tuple[StoredAnswer | None, bool]:
    """Return the answer of a key, and whether it is still in progress."""
    if row.state == "saved":
        headers = tuple((name, value) for name, value in row.headers or ())
        return StoredAnswer(row.status_code, row.body or b"", headers, row.body_key), False
    if row.job_id is None:
        return None, row.is_in_flight
    try:
        job = find_request(connection, row.tenant_id, row.job_id)
    except RequestNotFoundError:  # removed before its key expired
        return None, False
    if is_answered_well(job):
        headers = (*_JSON, *replayed_headers(job.model, job.model_version, job.degraded))
        return StoredAnswer(job.status_code, job.body or b"", headers, job.body_key), False
    is_open = job.outcome is None and JobState(job.state) not in TERMINAL_STATES
    return None, is_open and job.close_reason is None and not job.is_past


def _is_repeat(claim: IdempotencyClaim, row: sa.Row[Any]) -> bool:
    """Whether the claim repeats the request of the row.

    A client key always means a repeat. A derived key only means that two requests are equal: the
    second is a repeat if its client states a retry, or if a stated retry overtook it.
    """
    if claim.scope is KeyScope.CLIENT:
        return True
    return claim.attempt > 0 or (row.attempt > 0 and row.is_overtaken)


def _upsert(connection: sa.Connection, claim: IdempotencyClaim, values: dict[str, object]) -> None:
    row: dict[str, object] = {
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
        tenant_id=claim.tenant_id, scope=claim.scope, key=claim.key, **row
    )
    set_ = {name: statement.excluded[name] for name in row}
    connection.execute(statement.on_conflict_do_update(index_elements=_PRIMARY, set_=set_))


def _answer_values(answer: StoredAnswer) -> dict[str, object]:
    return {
        "state": "saved",
        "status_code": answer.status_code,
        "headers": [list(pair) for pair in answer.headers],
        "body": answer.body,
        "body_key": answer.body_key,
    }


def _is_claimed_by(claim: IdempotencyClaim) -> list[sa.ColumnElement[bool]]:
    return [
        _keys.tenant_id == claim.tenant_id,
        _keys.scope == claim.scope,
        _keys.key == claim.key,
        _keys.holder == claim.holder,
        _keys.state == "in_flight",
    ]


def find_expired_keys(
    connection: sa.Connection, limit: int, *, excluding: Collection[str] = ()
) -> list[sa.Row[Any]]:
    """Return the rows of expired keys, oldest first, except those whose object is in `excluding`.

    Delete their objects before the keys.
    """
    columns = [*_PRIMARY, _keys.expires_at, _keys.body_key]
    query = sa.select(*columns).where(_keys.expires_at <= sa.func.now())
    if excluding:
        others = _keys.body_key != sa.all_(sa.literal(list(excluding), sa.ARRAY(sa.Text)))
        query = query.where(sa.or_(_keys.body_key.is_(None), others))
    return list(connection.execute(query.order_by(_keys.expires_at).limit(limit)))


def delete_expired_keys(connection: sa.Connection, expired: Collection[sa.Row[Any]]) -> int:
    """Delete expired keys, except those claimed again in the meantime; return how many."""
    same = sa.tuple_(*_PRIMARY, _keys.expires_at).in_(
        [(key.tenant_id, key.scope, key.key, key.expires_at) for key in expired]
    )
    return connection.execute(sa.delete(idempotency_keys).where(same)).rowcount
