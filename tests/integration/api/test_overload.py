"""Goal: an overloaded pool refuses calls in the shedding order, with a time at which to return."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.integration.api.answers import batch_body, file_id, ok, refused
from tests.integration.api.online_site import ASK, ENDPOINT, Online, OpenOnline
from tests.integration.api.pool import PlayedPool, say_nothing
from topics.records.records import Chunk, ReplyEnd

ONLINE = {"predicted_wait_s_max": 4.0}  # calls above the share of a tenant: 3 s


def answer_in_a_second(pool: PlayedPool, chunk: Chunk) -> None:
    pool.reply(chunk, end=ReplyEnd(200, b"{}", execution_s=1.0))


@dataclass
class FullPool:
    """A pool with one slot that completes one call in a second, and calls that are held open."""

    online: Online
    held: list[socket.socket] = field(default_factory=list)

    def hold_calls(self, count: int, *, wait_s: float) -> None:
        """Send calls that nobody answers, until others would wait for so long."""
        pool, before = self.online.pool, len(self.online.pool.chunks)
        pool.script = say_nothing
        self.held += [self.online.send() for _ in range(count)]
        pool.wait_for(lambda: len(pool.chunks) == before + count)
        self.online.wait_for_predicted_wait(wait_s)

    def answer_held_calls(self) -> None:
        for chunk in self.online.pool.chunks:
            self.online.pool.reply(chunk, end=ReplyEnd(200, b"{}", execution_s=1.0))


@pytest.fixture
def full(open_online: OpenOnline) -> Iterator[FullPool]:
    online = open_online(**ONLINE)
    online.pool.concurrency = 1
    online.pool.script = answer_in_a_second
    assert online.call().status_code == 200
    online.wait_for_predicted_wait(0.0)  # not that of an earlier API in this process
    full = FullPool(online)
    yield full
    for connection in full.held:
        connection.close()


def test_a_full_pool_answers_503_with_a_time_at_which_the_call_is_admitted(
    full: FullPool,
) -> None:
    full.hold_calls(6, wait_s=5.0)  # one runs, five wait: a second above the limit
    answer = full.online.call()
    error = refused(answer, 503)
    assert (error["type"], error["code"]) == ("service_unavailable_error", "queue_full")
    assert error["message"] == "The model is overloaded."
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert "x-should-retry" not in answer.headers
    full.answer_held_calls()
    full.online.pool.script = answer_in_a_second
    full.online.pool.wait_for(lambda: full.online.call().status_code == 200)


def test_a_tenant_above_its_share_is_refused_with_429_and_another_is_served(
    full: FullPool,
) -> None:
    online = full.online
    with online.site.client(online.site.other_key) as other:
        online.pool.script = lambda pool, chunk: pool.reply(chunk, pieces=[b'{"n":0}'])
        with other.stream("POST", ENDPOINT, json=ASK | {"stream": True}) as stream:
            pieces = stream.iter_raw()  # held: one that is dropped closes the connection
            assert next(pieces)
            full.hold_calls(4, wait_s=4.0)  # with the stream five are open: four wait
            answer = online.call()
            error = refused(answer, 429)
            assert (error["type"], error["code"]) == ("rate_limit_exceeded", "queue_full")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            online.pool.script = answer_in_a_second
            assert other.post(ENDPOINT, json=ASK).status_code == 200


def test_a_call_that_cannot_be_served_in_time_is_refused(full: FullPool) -> None:
    full.hold_calls(4, wait_s=3.0)  # three wait
    answer = full.online.call(X_Request_Timeout_Ms="1500")
    error = refused(answer, 503)
    assert (error["code"], error["message"]) == (
        "queue_full",
        "The call would not be served in time.",
    )


def test_new_batches_are_refused_before_calls_and_a_repeat_gets_its_answer(full: FullPool) -> None:
    client, key = full.online.client, {"Idempotency-Key": "batch"}
    line = {"custom_id": "1", "method": "POST", "url": ENDPOINT, "body": ASK}
    body = batch_body(file_id(client, json.dumps(line).encode()), endpoint=ENDPOINT)
    accepted = ok(client.post("/v1/batches", json=body, headers=key))
    full.hold_calls(4, wait_s=3.0)  # batches are refused above 2 s, calls above 4 s
    answer = client.post("/v1/batches", json=body)
    error = refused(answer, 503)
    assert (error["type"], error["code"]) == ("service_unavailable_error", "queue_full")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert ok(client.post("/v1/batches", json=body, headers=key))["id"] == accepted["id"]
    other = batch_body(file_id(client, b'{"body":{"model":"unknown"}}'), endpoint=ENDPOINT)
    refused(client.post("/v1/batches", json=other), 503)  # its other lines may name this model
    full.online.pool.script = answer_in_a_second
    assert full.online.call().status_code == 200
