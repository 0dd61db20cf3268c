"""Goal: a log of attempts that cannot be read is asked again after a pause, never in a hot loop."""

from typing import cast
from uuid import UUID

import pytest

from gpu_consumers.attempt_log import AttemptLog
from topics.errors import LogUnavailableError
from topics.producer import LogProducer
from topics.settings import KafkaSettings


async def test_a_log_that_fails_at_once_is_asked_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    log = AttemptLog(kafka, cast(LogProducer, None), client_id="test")
    happened: list[str] = []

    def read() -> dict[UUID, object]:
        happened.append("read")
        if happened.count("read") < 3:
            raise LogUnavailableError
        return {}

    async def sleep(_seconds: float) -> None:
        happened.append("pause")

    monkeypatch.setattr(log, "_read", read)
    monkeypatch.setattr("gpu_consumers.attempt_log.asyncio.sleep", sleep)

    assert await log.before(UUID(int=1), generation=1) is None
    assert happened == ["read", "pause", "read", "pause", "read"]
