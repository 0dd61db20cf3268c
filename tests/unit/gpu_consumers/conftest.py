"""Fixtures of tests of the bulk worker."""

import asyncio

import pytest

from tests.unit.gpu_consumers.fakes import SuspectDelay


@pytest.fixture
def suspect_delay(monkeypatch: pytest.MonkeyPatch) -> SuspectDelay:
    delay = SuspectDelay(asyncio.sleep)
    monkeypatch.setattr(asyncio, "sleep", delay.sleep)
    return delay
