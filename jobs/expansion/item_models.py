"""The model of each item of a job whose requests name several; other jobs need none of this.

An item does not carry its model: its chunk does (`JobRef.model`). So the items of such a job are
divided into chunks by model, in the order of their first items.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Concatenate, Final, ParamSpec

import msgspec

from core.limits import CHUNK_BYTES_MAX, CHUNK_ITEMS_MAX
from jobs.input.line_reader import InputChangedError, decode_validated
from topics.records.records import Item, JobRef

P = ParamSpec("P")

BUFFERED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of items in chunks that are not full, of all models."""


class _Body(msgspec.Struct, gc=False):
    """Loosely typed, as in validation: the last value of a repeated key counts."""

    model: Any


class _Line(msgspec.Struct, gc=False):
    body: _Body


_LINE: Final = msgspec.json.Decoder(_Line)


class ItemModels:
    """Notes the models of items as their lines are parsed. Not thread-safe."""

    def __init__(self, pins: Mapping[str, Mapping[str, str]]) -> None:
        """`pins` has the version and base version of each name of the job."""
        self._pins = pins
        self._names: dict[int, str] = {}

    def noting(
        self, parse: Callable[Concatenate[int, int, bytes | None, P], Item]
    ) -> Callable[Concatenate[int, int, bytes | None, P], Item]:
        """Return `parse`, which reads index, offset and line of an item, and notes its model.

        The returned function also raises InputChangedError for a model that the job did not pin.
        """

        def parse_and_note(
            index: int, offset: int, line: bytes | None, /, *args: P.args, **options: P.kwargs
        ) -> Item:
            item = parse(index, offset, line, *args, **options)
            name = decode_validated(_LINE.decode, line, index).body.model
            if type(name) is not str or name not in self._pins:
                raise InputChangedError(index=index)
            self._names[index] = name
            return item

        return parse_and_note

    def chunks(self, job: JobRef, items: Iterable[Item]) -> Iterator[tuple[JobRef, list[Item]]]:
        """Yield the chunks of items, each with the reference of its model; forget their models.

        `items` may be parsed as they are read.
        """
        refs: dict[str, JobRef] = {}
        for name, chunk in split_by_model(items, lambda item: self._names[item.index]):
            if name not in refs:
                refs[name] = ref_of_model(job, name, self._pins[name])
            yield refs[name], chunk
        self._names.clear()


def ref_of_model(job: JobRef, name: str, pin: Mapping[str, str]) -> JobRef:
    """Return the reference of a job for its items of one model."""
    return msgspec.structs.replace(
        job, model=name, model_version=pin["version"], base_version=pin["base_version"]
    )


def split_by_model(
    items: Iterable[Item], model_of: Callable[[Item], str]
) -> Iterator[tuple[str, list[Item]]]:
    """Yield chunks of items of one model within the limits of chunks. Pure.

    The order of the items of a model is kept. Holds one chunk of each model, and
    `BUFFERED_BYTES_MAX` and one item in all: the chunk that was begun first is yielded then.
    """
    begun: dict[str, list[Item]] = {}  # in the order of their first items
    sizes: dict[str, int] = {}
    buffered = 0
    for item in items:
        name, size = model_of(item), item.length or len(item.body)
        chunk = begun.get(name)
        if chunk and (sizes[name] + size > CHUNK_BYTES_MAX or len(chunk) == CHUNK_ITEMS_MAX):
            buffered -= sizes[name]
            yield name, begun.pop(name)
        if name not in begun:
            begun[name], sizes[name] = [], 0
        begun[name].append(item)
        sizes[name] += size
        buffered += size
        while buffered > BUFFERED_BYTES_MAX:
            first = next(iter(begun))
            buffered -= sizes[first]
            yield first, begun.pop(first)
    yield from begun.items()
