"""Fixtures of tests of a replica."""

import asyncio

import pytest

from tests.unit.gpu_consumers.fakes import SuspectDelay
from tests.unit.gpu_consumers.replicas import BulkReplica, OnlineReplica


@pytest.fixture
async def replica() -> OnlineReplica:
    return OnlineReplica()


@pytest.fixture
async def bulk() -> BulkReplica:
    return BulkReplica()


@pytest.fixture
def suspect_delay(monkeypatch: pytest.MonkeyPatch) -> SuspectDelay:
    delay = SuspectDelay(asyncio.sleep)
    monkeypatch.setattr(asyncio, "sleep", delay.sleep)
    return delay
