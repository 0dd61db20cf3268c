"""The items of retries, read again from the lines of their file."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from jobs.expansion.emission import InputChangedError, item_of
from jobs.input.input_files import InputFile
from jobs.input.line_lookup import lines_at
from jobs.recovery.repair import lines_of
from jobs.recovery.retry_queue import Retry
from storage.objects.object_store import ObjectStore
from topics.records.records import Item


def retried_items(
    objects: ObjectStore,
    file: InputFile,
    retries: Sequence[Retry],
    endpoint: str,
    is_over: Callable[[], bool],
) -> dict[int, Item]:
    """Return the items of `retries`, which are in the order of their indexes, by index.

    Asked before each read, `is_over` ends it: what was read by then is returned.
    Lines whose offset is not known are looked for from the start of the file. What has no line
    that validation would have taken is left out. Raises what a store raises.
    """
    items: dict[int, Item] = {}
    known = {r.item_index: r.line_offset for r in retries if r.line_offset is not None}
    lines = lines_at(objects, file.key, list(known.values()), is_over)
    for (index, offset), line in zip(known.items(), lines, strict=False):
        with suppress(InputChangedError):
            items[index] = item_of(index, offset, line, endpoint)
    # A set: one item may wait for two attempts, the later one scheduled before the row of the
    # earlier one was deleted.
    unknown = sorted({r.item_index for r in retries} - known.keys())
    if unknown and not is_over():
        for index, offset, line in lines_of(objects, file, unknown, is_over):
            with suppress(InputChangedError):
                items[index] = item_of(index, offset, line, endpoint)
    return items
