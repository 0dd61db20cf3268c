"""Goal: a folder without a version is loaded until its day, and a refusal is counted and rests."""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.replica_model import prepare_model, require_unverified_allowed
from tests.support.clock import ManualClock
from tests.support.memory_objects import MemoryStore
from topics.settings import KafkaSettings

CLOCK = ManualClock(datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp())


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings(kind="vllm", model_name="m", model_path=Path("/model"), **fields)


@pytest.mark.parametrize("until", ["2026-12-31", "2027-01-01", "9999-12-31"])
def test_a_folder_is_allowed_until_the_end_of_its_day(until: str) -> None:
    require_unverified_allowed(settings(unverified_until=until), CLOCK)


def test_other_engines_need_no_day() -> None:
    require_unverified_allowed(EngineSettings(kind="simulated", model_name="m"), CLOCK)


@pytest.mark.parametrize("fields", [{}, {"unverified_until": "2026-12-30"}])
async def test_a_folder_is_refused_after_its_day(fields: dict[str, str]) -> None:
    stop, refused = threading.Event(), list[ModelRefusedError]()
    stop.set()  # so that the rest ends at once

    def count() -> float:
        labels = {"reason": "unverified"}
        return REGISTRY.get_sample_value("millrace_model_refused_total", labels) or 0.0

    before = count()
    with pytest.raises(ModelRefusedError, match="model_version") as refusal:
        await prepare_model(
            settings(**fields),
            KafkaSettings(bootstrap_servers="none:1"),
            MemoryStore(),
            clock=CLOCK,
            stop=stop,
            on_refused=refused.append,
        )
    assert refusal.value.reason == RefusalReason.UNVERIFIED
    assert refused == [refusal.value]
    assert count() == before + 1
