"""Goal: an engine that does not start is counted, published as refused, and rests."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from core.errors import EngineDeadError, MillraceError, SettingsError
from gpu_consumers.engines.engine import Engine
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.vllm_engine import VllmEngine
from gpu_consumers.flow_control.loading_state import LoadingState
from gpu_consumers.model_start import model_to_load, start_engine
from gpu_consumers.weights.model_loading import StagedModel
from registry.manifests.manifest import Manifest
from tests.unit.gpu_consumers.test_loading_state import FlushedProducer
from topics.records.records import LoadedModel


def settings(folder: Path = Path("/none")) -> EngineSettings:
    return EngineSettings(kind="vllm", model_path=folder, model_name="m")


def refused_count() -> float:
    labels = {"reason": "options"}
    return REGISTRY.get_sample_value("millrace_model_refused_total", labels) or 0.0


class FailingEngine:
    """An engine whose start fails."""

    def __init__(self, failure: MillraceError) -> None:
        self.failure = failure

    async def start(self) -> None:
        raise self.failure


async def start(engine: object, of: EngineSettings) -> list[list[LoadedModel]]:
    """Start an engine, which must fail; return what was published."""
    producer, stop = FlushedProducer(), threading.Event()
    stop.set()  # so that the rest ends at once
    loading = LoadingState(producer, "r1", "p", ("bulk",), "v1")
    with pytest.raises((SettingsError, EngineDeadError)):
        await start_engine(cast(Engine, engine), of, loading, stop)
    return [one.models for one in producer.capacities]


async def test_options_that_the_engine_does_not_take_are_a_refusal(tmp_path: Path) -> None:
    before = refused_count()
    engine = VllmEngine(settings(tmp_path / "missing"))
    assert await start(engine, settings()) == [[LoadedModel("v1", "refused", reason="options")]]
    assert refused_count() == before + 1


async def test_a_start_that_fails_is_a_refusal() -> None:
    before = refused_count()
    assert await start(FailingEngine(EngineDeadError()), settings()) != []
    assert refused_count() == before + 1


async def test_a_server_that_is_not_reached_is_no_refusal() -> None:
    before = refused_count()
    other = EngineSettings(kind="openai_http", upstream="http://none:1", model_name="m")
    assert await start(FailingEngine(SettingsError()), other) == []
    assert refused_count() == before


def test_the_engine_gets_the_kv_cache_of_the_memory_plan() -> None:
    manifest = Manifest((), engine_options={"dtype": "float16"}, sampling={"top_p": 0.5})

    class Staged:
        folder = Path("/model")

    model = StagedModel("5" * 64, manifest, cast(Any, Staged()), "key", 4096)
    loaded = model_to_load(model)
    assert loaded is not None
    assert (loaded.folder, loaded.version) == (Path("/model"), "5" * 64)
    assert (loaded.engine_options, loaded.sampling) == ({"dtype": "float16"}, {"top_p": 0.5})
    assert loaded.kv_cache_memory_bytes == 4096
    assert model_to_load(None) is None
