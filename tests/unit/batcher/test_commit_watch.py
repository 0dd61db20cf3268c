"""Goal: a batcher checks the database against the log, and ends when commits were lost."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import pytest
import sqlalchemy as sa

from batcher import commit_watch
from batcher.commit_watch import watch_commits
from core.commit_watermark import CommitsLostError


async def test_checks_repeat_through_an_outage_and_end_with_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_watch, "CHECK_INTERVAL_S", 0.0)
    outcomes: list[Exception] = [
        sa.exc.OperationalError("SELECT 1", {}, Exception()),
        CommitsLostError(),
    ]
    log = {UUID(int=1): 7}
    seen: list[Mapping[UUID, int]] = []

    def check(numbers: Mapping[UUID, int]) -> None:
        seen.append(dict(numbers))
        log[UUID(int=1)] += 1
        raise outcomes.pop(0)

    with pytest.raises(CommitsLostError):
        await asyncio.wait_for(watch_commits(check, log), 20)
    assert [numbers[UUID(int=1)] for numbers in seen] == [7, 8]
