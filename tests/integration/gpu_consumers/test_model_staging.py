"""Goal: a replica reads the topic `models` before it loads a model or an adapter.

It ends for good when it refuses its model, and goes on when it refuses an adapter.
"""

import asyncio
import signal
import threading
from pathlib import Path
from random import Random

import pytest

from cli.stack.processes.child import last_exit_reason, spawn
from core.clock import SystemClock
from core.runtime.role_lifecycle import EXIT_INVALID_SETTINGS
from gpu_consumers.adapters.adapter_slots import AdapterRefusedError
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.replica_model import adapter_staging, prepare_model
from registry.signing.keys import SigningKey
from storage.objects.local_object_store import LocalObjectStore
from tests.integration.gpu_consumers.replica_processes import replica_child
from tests.support.signed_models import StoredModel, model_contents, store_model
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.records.catalogue import MODELS
from topics.records.codec import encode, kind_headers
from topics.records.model_states import ModelKeyState, ModelState, model_state_key
from topics.settings import KafkaSettings

KEY = SigningKey.generate()


class Installation:
    """A signed model in a local object store, and a registry that writes to `models`."""

    def __init__(self, folder: Path, producer: RecordProducer) -> None:
        self.folder, self._producer = folder, producer
        self.objects = LocalObjectStore(folder / "objects", clock=SystemClock())
        self.model: StoredModel = store_model(self.objects, model_contents(Random(1)), KEY)
        (folder / "keys.pem").write_bytes(KEY.public.pem)

    def settings(self) -> EngineSettings:
        return EngineSettings.from_env({f"MILLRACE_ENGINE_{k}": v for k, v in self.env().items()})

    def env(self) -> dict[str, str]:
        return {
            "KIND": "vllm",
            "MODEL_NAME": "m",
            "MODEL_VERSION": self.model.version,
            "TRUSTED_KEYS": str(self.folder / "keys.pem"),
            "WEIGHT_CACHE": str(self.folder / "cache"),
        }

    def write(self, state: ModelState | ModelKeyState) -> None:
        self._producer.send(
            MODELS.name,
            encode(state),
            partition=0,
            key=model_state_key(state),
            headers=kind_headers(type(state)),
        )
        self._producer.flush(40)

    def register(self, revision: int = 1, *, retired: bool = False) -> None:
        self.write(ModelState("m", self.model.version, "p", revision, retired))


@pytest.fixture
def installation(tmp_path: Path, producer: RecordProducer) -> Installation:
    return Installation(tmp_path, producer)


async def test_a_registered_version_is_staged_until_its_key_is_revoked(
    kafka: KafkaSettings, installation: Installation
) -> None:
    installation.register()
    stop = threading.Event()
    arguments = (installation.settings(), kafka, installation.objects)
    staged = await prepare_model(*arguments, clock=SystemClock(), stop=stop)
    assert staged is not None
    assert staged.manifest == installation.model.manifest
    for path, content in installation.model.contents.items():
        assert (staged.folder / path).read_bytes() == content
    staged.release()

    installation.write(ModelKeyState(KEY.public.key_id, 2, revoked=True))
    with pytest.raises(ModelRefusedError) as refusal:
        await prepare_model(
            *arguments, clock=SystemClock(), stop=stop, on_refused=lambda _: stop.set()
        )
    assert refusal.value.reason == RefusalReason.REVOKED_KEY


async def test_adapters_of_the_loaded_version_are_staged_as_the_registry_says(
    kafka: KafkaSettings, installation: Installation
) -> None:
    base, objects = installation.model.version, installation.objects
    contents = {"adapter_model.safetensors": b"weights"}
    adapter = store_model(objects, contents, KEY, base=base)
    unsigned = store_model(objects, contents | {"README.md": b""}, base=base)
    later = store_model(objects, contents | {"LICENSE": b""}, KEY, base=base)
    for number, one in enumerate((adapter, unsigned)):
        installation.write(ModelState(f"a{number}", one.version, "p", 1, base_version=base))
    opened = adapter_staging(
        installation.settings(), kafka, objects, base, clock=SystemClock(), stop=threading.Event()
    )
    async with opened as staging:
        held = await staging.stage(adapter.version)
        assert [path.name for path in held.path.iterdir()] == [*contents]
        held.release()
        with pytest.raises(AdapterRefusedError, match="is not signed"):
            await staging.stage(unsigned.version)
        # The topic is read again for each adapter.
        waiting = asyncio.create_task(staging.stage(later.version))
        installation.write(ModelState("a2", later.version, "p", 2, base_version=base))
        (await waiting).release()
        installation.write(ModelState("a0", adapter.version, "p", 3, True, base))
        with pytest.raises(AdapterRefusedError, match="has retired"):
            await staging.stage(adapter.version)


def test_a_replica_of_a_retired_version_ends_as_with_invalid_settings(
    kafka: KafkaSettings, installation: Installation
) -> None:
    installation.register()
    installation.register(2, retired=True)
    env = {f"MILLRACE_ENGINE_{name}": value for name, value in installation.env().items()}
    env["MILLRACE_OBJECTS_ROOT"] = str(installation.folder / "objects")
    child = replica_child(kafka, installation.folder, "replica", env)
    process = spawn(child, installation.folder)
    log = installation.folder / "replica.log"
    try:
        until(lambda: "model_refused" in log.read_text(), timeout_s=50)
        process.send(signal.SIGTERM)  # so that the rest ends at once
        until(process.has_ended, timeout_s=20)
    finally:
        code = process.kill_and_reap()
    assert code == EXIT_INVALID_SETTINGS, log.read_text()
    assert "retired" in (last_exit_reason(log) or "")
