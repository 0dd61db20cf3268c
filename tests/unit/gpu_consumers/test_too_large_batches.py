"""Goal: a batch that is too large for the memory loses nothing, whatever else is away."""

from typing import NoReturn, cast

import msgspec

from core.outcomes import Outcome
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectStore
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery
from topics.records.records import Item


class AwayStore:
    """An object store that does not answer."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ObjectStoreUnavailableError


async def test_it_is_split_while_the_store_is_away() -> None:
    life = Life(Log(), Attempts(), TouchyEngine(room=2), cast(ObjectStore, AwayStore()))
    batch = batch_of(*[b"{}"] * 4)
    (part,) = batch.parts
    by_reference = Item(4, "c4", b"", 1, length=10)
    parts = [msgspec.structs.replace(part, items=[*part.items, by_reference])]
    life.lane.begin(delivery(msgspec.structs.replace(batch, parts=parts)))

    assert await life.end() is None
    ends = [(outcome.index, outcome.outcome) for outcome in life.log.outcomes]
    assert ends == [(index, Outcome.SUCCEEDED) for index in range(4)]
    assert (life.log.put_back, life.consumer.offsets) == ([4], [0])
