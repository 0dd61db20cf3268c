"""What tests of the lane of batches share."""

import asyncio

import pytest

from tests.unit.gpu_consumers.rests import Rest


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> Rest:
    found = Rest(asyncio.sleep)
    monkeypatch.setattr(asyncio, "sleep", found.sleep)
    return found
