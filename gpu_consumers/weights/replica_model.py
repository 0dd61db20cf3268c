"""Prepares the model of a replica: verified and staged, or a folder that is allowed unverified."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from core.clock import Clock
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.weights import metrics
from gpu_consumers.weights.adapter_staging import AdapterStaging
from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.model_loading import (
    MemoryCheck,
    ModelLoader,
    RegistryView,
    StagedModel,
    fits_always,
)
from gpu_consumers.weights.registry_state import AdapterVersions, ModelVersions, RegistryReader
from gpu_consumers.weights.trusted_keys import read_trusted_keys
from gpu_consumers.weights.weight_cache import WeightCache
from registry.signing.keys import PublicKey
from storage.objects.object_store import ObjectStore
from topics.records.catalogue import MODELS
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

_GIB: Final = 1024**3

REFUSAL_REST_S: Final = 15.0
"""How long a process that refused its model rests before it ends: Prometheus can read the reason,
and whatever restarts the process does so a few times a minute at most."""

_LOG = logging.getLogger(__name__)


async def prepare_model(  # noqa: PLR0913  each one is a dependency
    settings: EngineSettings,
    kafka: KafkaSettings,
    objects: ObjectStore,
    *,
    clock: Clock,
    stop: threading.Event,
    check_memory: MemoryCheck = fits_always,
    on_refused: Callable[[ModelRefusedError], None] = lambda _: None,
) -> StagedModel | None:
    """Return the staged model, or None for an engine that loads no version.

    A refusal is counted, logged and passed to `on_refused`. It is raised after `REFUSAL_REST_S`, or
    earlier if the process stops. Raises ModelRefusedError, SettingsError, KafkaUnavailableError,
    ObjectStoreUnavailableError and StagingStoppedError.
    """
    try:
        if settings.kind != "vllm" or settings.model_version is None:
            require_unverified_allowed(settings, clock)
            return None
        return await asyncio.to_thread(
            _stage, settings, kafka, objects, clock=clock, stop=stop, check_memory=check_memory
        )
    except ModelRefusedError as refusal:
        await report_refusal(refusal, on_refused, stop)
        raise


async def report_refusal(
    refusal: ModelRefusedError,
    on_refused: Callable[[ModelRefusedError], None],
    stop: threading.Event,
) -> None:
    """Count and log a refusal, pass it to `on_refused`, and rest for `REFUSAL_REST_S`."""
    metrics.MODEL_REFUSED.labels(refusal.reason.value).inc()
    _LOG.critical("model_refused", extra={"reason": refusal.reason.value, "detail": str(refusal)})
    on_refused(refusal)
    await asyncio.to_thread(stop.wait, REFUSAL_REST_S)


def require_unverified_allowed(settings: EngineSettings, clock: Clock) -> None:
    """Refuse a vLLM model by folder, unless `unverified_until` allows it today (UTC)."""
    if settings.kind != "vllm":
        return
    until = settings.unverified_until
    if until is None:
        text = (
            "model_path loads files that are not verified: set model_version, or unverified_until"
        )
        raise ModelRefusedError(RefusalReason.UNVERIFIED, f"{text} for the time being.")
    if until < datetime.fromtimestamp(clock.wall_s(), UTC).date():
        text = f"unverified_until was {until}: set model_version instead of model_path."
        raise ModelRefusedError(RefusalReason.UNVERIFIED, text)
    _LOG.warning("model_unverified", extra={"until": until.isoformat()})


def _stage(
    settings: EngineSettings,
    kafka: KafkaSettings,
    objects: ObjectStore,
    *,
    clock: Clock,
    stop: threading.Event,
    check_memory: MemoryCheck,
) -> StagedModel:
    assert settings.model_version is not None
    sources = _sources(settings, objects, clock)
    reader = TopicTailReader(kafka, MODELS, client_id="gpu-consumer-models")
    try:
        registry = ModelVersions(
            RegistryReader(reader, clock=clock), settings.model_name, stop.wait
        )
        loader = sources.loader(registry, stop.wait, check_memory)
        model = loader.stage(settings.model_version)
    finally:
        reader.close()
    _LOG.info("model_staged", extra={"version": model.version, "signed_by": model.signed_by})
    return model


@contextlib.asynccontextmanager
async def adapter_staging(
    settings: EngineSettings,
    kafka: KafkaSettings,
    objects: ObjectStore,
    base_version: str,
    *,
    clock: Clock,
    stop: threading.Event,
) -> AsyncIterator[AdapterStaging]:
    """Stage adapters of a version that is staged already, by the same keys and the same cache."""
    sources = _sources(settings, objects, clock)

    @contextlib.contextmanager
    def open_loader(wait: Wait) -> Iterator[ModelLoader]:
        # A client that nobody polls between two adapters would collect its statistics for ever.
        topic = TopicTailReader(kafka, MODELS, client_id="gpu-consumer-adapters")
        try:
            registry = AdapterVersions(RegistryReader(topic, clock=clock), base_version, wait)
            yield sources.loader(registry, wait, base=base_version)
        finally:
            topic.close()

    staging = AdapterStaging(open_loader, clock=clock, stop=stop)
    try:
        yield staging
    finally:
        await staging.close()


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where models come from, and the keys that verify them."""

    objects: ObjectStore
    trusted: Mapping[str, PublicKey]
    cache: Path
    cache_bytes_max: int
    clock: Clock

    def loader(
        self,
        registry: RegistryView,
        wait: Wait,
        check_memory: MemoryCheck = fits_always,
        base: str | None = None,
    ) -> ModelLoader:
        """Return a loader, which `wait` ends."""
        cache = WeightCache(self.cache, bytes_max=self.cache_bytes_max, clock=self.clock, wait=wait)
        return ModelLoader(self.objects, cache, registry, self.trusted, wait, check_memory, base)


def _sources(settings: EngineSettings, objects: ObjectStore, clock: Clock) -> _Sources:
    assert settings.weight_cache is not None, "validated with the version"
    assert settings.trusted_keys is not None, "validated with the version"
    return _Sources(
        objects,
        read_trusted_keys(settings.trusted_keys),
        settings.weight_cache,
        settings.weight_cache_gib_max * _GIB,
        clock,
    )
