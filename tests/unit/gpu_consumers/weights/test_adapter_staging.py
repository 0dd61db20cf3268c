"""Goal: what is wrong with an adapter fails its items; what is wrong here requeues them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.clock import SystemClock
from core.errors import PoolBusyError, SchemaTooNewError
from gpu_consumers.adapters.adapter_slots import AdapterRefusedError
from gpu_consumers.weights.adapter_staging import REFUSAL_S, AdapterStaging
from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.model_loading import ModelLoader, fits_always
from gpu_consumers.weights.weight_cache import WeightCache
from storage.objects.errors import ObjectStoreUnavailableError
from tests.support.clock import ManualClock
from tests.support.signed_models import StoredModel, store_model
from tests.unit.gpu_consumers.weights.replica_world import KEY, World
from topics.errors import KafkaUnavailableError

BASE = "b" * 64


class Replica:
    """A replica that stages adapters; `before` runs in the thread of each staging."""

    def __init__(self, folder: Path) -> None:
        self.world, self.clock = World(folder, 1), ManualClock()
        self.adapter: StoredModel = store_model(
            self.world.objects, {"adapter_model.safetensors": b"weights"}, KEY, base=BASE
        )
        self.world.registry.known.add(self.adapter.version)
        self.before: Callable[[Wait], object] = lambda _: None
        self.stop, self.opened = threading.Event(), 0
        self.staging = AdapterStaging(self.open_loader, clock=self.clock, stop=self.stop)

    @contextmanager
    def open_loader(self, wait: Wait) -> Iterator[ModelLoader]:
        self.opened += 1
        self.before(wait)
        world = self.world
        cache = WeightCache(world.folder / "cache", bytes_max=10**6, clock=SystemClock(), wait=wait)
        arguments = (world.objects, cache, world.registry, world.trusted, wait)
        yield ModelLoader(*arguments, fits_always, BASE)

    def fail(self, failure: Exception) -> None:
        def raise_it(_: Wait) -> None:
            raise failure

        self.before = raise_it


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)


async def test_an_adapter_is_held_until_it_is_released(replica: Replica) -> None:
    version = replica.adapter.version
    adapter = await replica.staging.stage(version)
    assert (adapter.path / "adapter_model.safetensors").read_bytes() == b"weights"
    assert not replica.world.is_released(version)
    adapter.release()
    assert replica.world.is_released(version)
    assert await replica.staging.close()


async def test_the_event_loop_is_not_blocked_while_an_adapter_is_staged(replica: Replica) -> None:
    may_go_on = threading.Event()
    replica.before = lambda _: may_go_on.wait(20)
    staging = asyncio.create_task(replica.staging.stage(replica.adapter.version))
    await asyncio.sleep(0)
    may_go_on.set()  # which a blocked loop would never reach
    (await staging).release()


async def test_a_refusal_fails_the_items_and_holds_for_a_while(replica: Replica) -> None:
    version = replica.adapter.version
    replica.world.registry.retired.add(version)
    for _ in range(2):
        with pytest.raises(AdapterRefusedError, match="not loaded: retired"):
            await replica.staging.stage(version)
    assert replica.opened == 1
    replica.world.registry.retired.clear()
    replica.clock.advance(REFUSAL_S)
    (await replica.staging.stage(version)).release()


@pytest.mark.parametrize("failure", [ObjectStoreUnavailableError(), PoolBusyError()])
async def test_a_service_that_is_away_requeues_by_its_own_error(
    replica: Replica, failure: Exception
) -> None:
    replica.fail(failure)
    with pytest.raises(type(failure)):
        await replica.staging.stage(replica.adapter.version)


@pytest.mark.parametrize(
    "failure",
    [
        KafkaUnavailableError(),
        SchemaTooNewError(),
        OSError(),
        TimeoutError(),
        ModelRefusedError(RefusalReason.CACHE, "full"),
    ],
)
async def test_a_failure_of_the_replica_requeues_and_is_tried_again(
    replica: Replica, failure: Exception
) -> None:
    replica.fail(failure)
    with pytest.raises(PoolBusyError):
        await replica.staging.stage(replica.adapter.version)
    replica.before = lambda _: None
    (await replica.staging.stage(replica.adapter.version)).release()


async def test_a_staging_ends_with_its_time(replica: Replica) -> None:
    replica.before = lambda _: replica.clock.advance(1_000)
    with pytest.raises(PoolBusyError):
        await replica.staging.stage(replica.adapter.version)


@pytest.mark.parametrize("ends", ["stop", "close"])
async def test_a_staging_ends_with_the_process(replica: Replica, ends: str) -> None:
    if ends == "stop":
        replica.stop.set()
    replica.before = until_ended
    staging = asyncio.create_task(replica.staging.stage(replica.adapter.version))
    await asyncio.sleep(0)
    assert await replica.staging.close()
    with pytest.raises(PoolBusyError):
        await staging


def until_ended(wait: Wait) -> None:
    while not wait(0.01):
        pass


async def test_what_is_staged_for_nobody_is_released(replica: Replica) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    def pause(_: Wait) -> None:
        has_begun.set()
        may_go_on.wait(20)

    replica.before = pause
    staging = asyncio.create_task(replica.staging.stage(replica.adapter.version))
    await asyncio.to_thread(has_begun.wait, 20)
    staging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staging
    may_go_on.set()
    await asyncio.to_thread(replica.staging._threads.shutdown)
    assert replica.world.is_released(replica.adapter.version)
