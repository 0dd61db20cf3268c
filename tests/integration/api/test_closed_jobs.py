"""Goal: a client that waits for a durable call learns of its close by any process."""

import pytest

from core.states import CloseReason
from tests.integration.api.answers import refused
from tests.integration.api.online_site import Online
from tests.integration.api.pool import PlayedPool, Script
from topics.records.records import Chunk, ReplyEnd

KEY = {"Idempotency_Key": "k"}
CONFLICT = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'


REPLICAS_WORD = ReplyEnd(
    409, b'{"error":{"message":"m","type":"t","param":null,"code":"cancelled"}}'
)


def say_cancelled(pool: PlayedPool, chunk: Chunk) -> None:
    """Cut a call short, as a replica does that hears of it first."""
    pool.reply(chunk, end=REPLICAS_WORD)


def tell_of_close(pool: PlayedPool, chunk: Chunk) -> None:
    """Drop a call unsent, as a batcher does: only `control` tells of it."""
    pool.close_job(chunk.job.job_id, CloseReason.CANCELLED)


@pytest.mark.parametrize("script", [say_cancelled, tell_of_close])
@pytest.mark.parametrize("headers", [KEY, {"Prefer": "wait=5"}])
def test_a_job_cancelled_by_another_process_ends_its_call(
    online: Online, script: Script, headers: dict[str, str]
) -> None:
    online.pool.script = script
    answer = online.call(**headers)
    assert refused(answer, 409)["code"] == "job_cancelled"
    assert answer.headers["x-should-retry"] == "false"


def test_an_expired_job_ends_its_call(online: Online) -> None:
    online.pool.script = lambda pool, chunk: pool.close_job(chunk.job.job_id, CloseReason.EXPIRED)
    answer = online.call(**KEY)
    assert refused(answer, 504)["code"] == "deadline_exceeded"


def test_a_409_of_the_engine_is_passed_on(online: Online) -> None:
    conflict = ReplyEnd(409, CONFLICT)
    online.pool.script = lambda pool, chunk: pool.reply(chunk, end=conflict)
    answer = online.call(**KEY)
    assert (answer.status_code, answer.content) == (409, CONFLICT)
