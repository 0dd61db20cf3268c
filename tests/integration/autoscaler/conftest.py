"""What tests that run the role in this process share."""

import gc
from collections.abc import Iterator

import pytest

from core.runtime import metrics


@pytest.fixture
def role_state() -> Iterator[None]:
    """The role reports that it is ready in this process, and tunes its garbage collector."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    metrics.ROLE_READY.set(0)
    metrics.IS_READY.clear()
