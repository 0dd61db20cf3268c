"""Goal: a degraded call says so in its answer and on the ledger, and is nobody else's answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from socket import socket
from typing import Any

import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from results.tables import billed_calls
from results.writer.call_billing import bills_of, write_bills
from results.writer.day_partitions import DayPartitions
from tenancy.tables import usage_ledger
from tenancy.tenant_changes import change_tenant_limits
from tests.integration.api.answers import ok
from tests.integration.api.online_site import Online, OpenOnline
from tests.integration.api.pool import PlayedPool, say_nothing
from topics.records.records import Chunk, ItemOutcome, Outcomes, ReplyEnd

CAP = 64
DEGRADED = f"output_tokens={CAP}"
LONG = {"max_tokens": 5000, "temperature": 0}


def answer_in_a_second(pool: PlayedPool, chunk: Chunk) -> None:
    call = chunk.job.call
    assert call is not None
    pieces = [b'{"n":0}'] if call.stream else None
    body = b"" if call.stream else b'{"asked":' + chunk.items[0].body + b"}"
    pool.reply(chunk, pieces=pieces, end=ReplyEnd(200, body, 3, 2, execution_s=1.0))


@dataclass
class LoadedPool:
    """A pool with one slot, and two calls of two seconds' wait that are held open."""

    online: Online
    held: list[socket] = field(default_factory=list)
    held_chunks: list[Chunk] = field(default_factory=list)

    def hold_calls(self) -> None:
        pool, before = self.online.pool, len(self.online.pool.chunks)
        pool.script = say_nothing
        self.held += [self.online.send() for _ in range(3)]
        pool.wait_for(lambda: len(pool.chunks) == before + 3)
        self.held_chunks = pool.chunks[before:]
        self.online.wait_for_predicted_wait(2.0)
        pool.script = answer_in_a_second

    def end_held_calls(self) -> None:
        for chunk in self.held_chunks:
            self.online.pool.reply(chunk, end=ReplyEnd(200, b"{}", execution_s=1.0))
        for held in self.held:
            assert held.recv(65_536)
            held.close()
        self.held.clear()
        self.online.wait_for_predicted_wait(0.0)

    def ledger(self) -> list[Any]:
        own = usage_ledger.c.tenant_id == self.online.site.tenant_id
        query = sa.select(usage_ledger.c.degraded, usage_ledger.c.item_count).where(own)
        with self.online.site.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query.order_by(usage_ledger.c.id))]


@pytest.fixture
def loaded(open_online: OpenOnline) -> Iterator[LoadedPool]:
    online = open_online(degrade_wait_s=1.0, routes_refresh_s=0.1)
    online.pool.concurrency = 1
    online.pool.script = answer_in_a_second
    limits = {"degraded_output_tokens_max": CAP, "response_cache_ttl_s": 600}
    with online.site.engine.begin() as connection:
        change_tenant_limits(connection, online.site.tenant_id, limits)
    assert online.call().status_code == 200
    online.wait_for_predicted_wait(0.0)  # not that of an earlier API in this process
    loaded = LoadedPool(online)
    yield loaded
    for held in loaded.held:
        held.close()


def test_a_capped_call_says_so_and_only_its_client_gets_its_answer(loaded: LoadedPool) -> None:
    online = loaded.online
    loaded.hold_calls()
    answer = online.call(LONG)
    assert answer.headers["x-millrace-degraded"] == DEGRADED
    assert ok(answer)["asked"]["max_tokens"] == CAP
    loaded.end_held_calls()
    whole = online.call(LONG)
    assert "x-millrace-degraded" not in whole.headers
    assert ok(whole)["asked"]["max_tokens"] == LONG["max_tokens"]  # not from the cache
    stored = online.call(LONG)
    assert stored.headers["x-millrace-cache"] == "hit"
    loaded.hold_calls()
    assert online.call(LONG).headers["x-millrace-cache"] == "hit"  # a stored answer needs no pool


def test_a_capped_stream_says_so(loaded: LoadedPool) -> None:
    loaded.hold_calls()
    answer = loaded.online.call({"stream": True})
    assert answer.headers["x-millrace-degraded"] == DEGRADED
    body = json.loads(loaded.online.pool.chunks[-1].items[0].body)
    assert body["max_completion_tokens"] == CAP


def test_the_ledger_names_the_degradation_of_a_call(loaded: LoadedPool) -> None:
    online = loaded.online
    loaded.hold_calls()
    assert ok(online.call(LONG))
    whole, capped = (online.pool.chunks[0], online.pool.chunks[-1])
    outcome = ItemOutcome(0, None, Outcome.SUCCEEDED, 200, b"", input_tokens=3, output_tokens=2)
    records = [Outcomes(chunk.job, [outcome]) for chunk in (whole, capped, capped)]
    engine = online.site.engine
    partitions = DayPartitions(engine, billed_calls)
    write_bills(engine, partitions, [bill for record in records for bill in bills_of(record)])
    assert sorted(loaded.ledger(), key=str) == [(DEGRADED, 1), (None, 1)]


def test_the_ledger_names_the_degradation_of_a_durable_call(loaded: LoadedPool) -> None:
    online = loaded.online
    loaded.hold_calls()
    answer = online.call(LONG, Idempotency_Key="k")
    assert answer.headers["x-millrace-degraded"] == DEGRADED
    online.record(online.pool.chunks[-1])
    assert loaded.ledger() == [(DEGRADED, 1)]
    loaded.end_held_calls()
    replay = online.call(LONG, Idempotency_Key="k")  # the same key and request, not degraded now
    assert replay.headers["idempotent-replayed"] == "true"
    assert replay.headers["x-millrace-degraded"] == DEGRADED  # it is the answer of then
    job = online.client.get(f"/v1/jobs/job_{online.pool.chunks[-1].job.job_id.hex}")
    assert ok(job)["degraded"] == DEGRADED


def test_a_replayed_stream_says_that_it_was_degraded(loaded: LoadedPool) -> None:
    online = loaded.online
    loaded.hold_calls()
    ask = {"stream": True}
    sent = online.call(ask, Idempotency_Key="k")
    assert sent.headers["x-millrace-degraded"] == DEGRADED
    loaded.end_held_calls()
    replay = online.call(ask, Idempotency_Key="k")
    assert (replay.headers["idempotent-replayed"], replay.content) == ("true", sent.content)
    assert replay.headers["x-millrace-degraded"] == DEGRADED


def test_a_call_that_may_be_answered_by_a_job_is_not_degraded(loaded: LoadedPool) -> None:
    online = loaded.online
    loaded.hold_calls()
    answer = online.call(LONG, Prefer="wait=60")
    assert "x-millrace-degraded" not in answer.headers
    assert ok(answer)["asked"]["max_tokens"] == LONG["max_tokens"]
    job = online.client.get(f"/v1/jobs/job_{online.pool.chunks[-1].job.job_id.hex}")
    assert ok(job)["degraded"] is None
