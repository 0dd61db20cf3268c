"""Goal: recordings of streams stay within their memory limit, however many are open."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from api.online.answer.event_stream import DONE, STREAM_HEADERS
from api.online.durable.durable_streams import RECORD_BYTES_MAX, StreamRecording
from api.online.memory_limits import MemoryLimit, recording_memory_limit
from api.runtime.api_services import Services
from core.ids import new_uuid
from jobs.store import idempotency
from jobs.store.idempotency import IdempotencyClaim, KeyScope, StoredAnswer

TENANT = new_uuid()
HEAD = {"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS]}


class Keys:
    """Plays Postgres: what became of each key."""

    def __init__(self) -> None:
        self.hangs_at_saving = False
        self.saved: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}  # of the last answer
        self.freed: list[str] = []

    async def run_for_tenant(
        self, _: UUID, work: object, claim: IdempotencyClaim, *given: StoredAnswer
    ) -> None:
        if work is idempotency.release_key:
            self.freed.append(claim.key)
        else:
            if self.hangs_at_saving:
                await asyncio.Event().wait()
            (answer,) = given
            self.saved[claim.key] = answer.body
            self.headers = dict(answer.headers)


class Stream:
    """A keyed stream on its way to a client that takes everything."""

    def __init__(self, keys: Keys, limit: MemoryLimit, key: str = "k") -> None:
        claim = IdempotencyClaim(
            tenant_id=TENANT,
            scope=KeyScope.CLIENT,
            key=key,
            route="POST /",
            body_sha256=b"",
            keep_s=60,
        )
        services = cast("Services", SimpleNamespace(database=keys, objects=None))
        self.recording = StreamRecording(services, claim, limit)
        self.sent = b""

    def send(self, *bodies: bytes, more: bool = True) -> None:
        parts = [{"type": "http.response.body", "body": one, "more_body": more} for one in bodies]
        self._pass_on(*parts)

    def begin(self, **head: object) -> "Stream":
        self._pass_on(HEAD | head)
        return self

    def _pass_on(self, *messages: Any) -> None:
        async def send() -> None:
            for message in messages:
                await self.recording.record(message)
                self.sent += message.get("body", b"")

        asyncio.run(send())

    def end(self) -> None:
        self.send(DONE, more=False)
        self.close()

    def close(self) -> None:
        asyncio.run(self.recording.close())


def free_bytes(limit: MemoryLimit) -> int:
    """Return how much the tenant could take now."""
    low, high = 0, 1 << 30
    while low < high:
        middle = (low + high + 1) // 2
        if limit.reserve(TENANT, middle) is None:
            limit.release(TENANT, middle)
            low = middle
        else:
            high = middle - 1
    return low


def test_a_recording_is_saved_without_comments_and_releases_memory() -> None:
    keys, limit = Keys(), recording_memory_limit(1000)
    stream = Stream(keys, limit).begin()
    stream.send(b"data: 1\n\n", b": keep-alive\n\n")
    assert free_bytes(limit) == 500 - len(b"data: 1\n\n")
    stream.end()
    assert keys.saved == {"k": b"data: 1\n\n" + DONE}
    assert (keys.freed, free_bytes(limit)) == ([], 500)


def test_a_recording_keeps_the_headers_that_describe_the_call() -> None:
    keys = Keys()
    described = [
        (b"x-millrace-model-version", b"m@1"),
        (b"x-millrace-degraded", b"output_tokens=9"),
    ]
    passing = [(b"x-request-id", b"r"), (b"x-ratelimit-remaining-tokens", b"5")]
    head = [*STREAM_HEADERS, *described, *passing]
    Stream(keys, recording_memory_limit(1000)).begin(headers=head).end()
    assert {(name.encode(), value.encode()) for name, value in keys.headers.items()} == {
        *STREAM_HEADERS,
        *described,
    }


def test_a_stream_above_the_limit_is_sent_and_frees_its_key() -> None:
    keys, limit = Keys(), recording_memory_limit(1000)
    first, second = (Stream(keys, limit, key).begin() for key in ("first", "second"))
    first.send(b"x" * 300)
    second.send(b"y" * 200)
    second.send(b"y")
    assert free_bytes(limit) == 200  # of the second nothing is held any more
    second.send(b"y" * 50)
    assert (free_bytes(limit), keys.freed) == (200, [])
    second.end()
    first.end()
    assert second.sent == b"y" * 251 + DONE
    assert (list(keys.saved), keys.freed, free_bytes(limit)) == (["first"], ["second"], 500)


def test_a_recording_that_is_too_long_releases_memory() -> None:
    keys, limit = Keys(), recording_memory_limit(4 * RECORD_BYTES_MAX)
    stream = Stream(keys, limit).begin()
    stream.send(b"x" * RECORD_BYTES_MAX)
    assert free_bytes(limit) == RECORD_BYTES_MAX
    stream.send(b"x")
    assert free_bytes(limit) == 2 * RECORD_BYTES_MAX
    stream.end()
    assert (keys.saved, keys.freed) == ({}, ["k"])


def test_an_interrupted_stream_releases_memory() -> None:
    keys, limit = Keys(), recording_memory_limit(1000)
    stream = Stream(keys, limit).begin()
    stream.send(b"x" * 300)
    stream.close()
    assert (keys.freed, free_bytes(limit)) == (["k"], 500)


def test_a_recording_that_is_not_saved_in_time_frees_its_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.online.durable.durable_streams._SAVE_S_MAX", 0.01)
    keys, limit = Keys(), recording_memory_limit(1000)
    keys.hangs_at_saving = True
    stream = Stream(keys, limit).begin()
    stream.end()
    assert stream.sent == DONE
    assert (keys.saved, keys.freed, free_bytes(limit)) == ({}, ["k"], 500)


@pytest.mark.parametrize("head", [{"status": 503}, {"headers": []}])
def test_other_responses_are_not_recorded(head: dict[str, Any]) -> None:
    keys, limit = Keys(), recording_memory_limit(1000)
    stream = Stream(keys, limit).begin(**head)
    stream.send(b"{}")
    assert free_bytes(limit) == 500
    stream.end()
    assert (keys.saved, keys.freed) == ({}, ["k"])
