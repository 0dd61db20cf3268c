"""Result records in the orders in which a log may redeliver them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from benchmarks.data.input_files import chat_answer, custom_id
from core.outcomes import Outcome
from results.settings import WriterSettings
from topics.records.records import ItemOutcome

RECORD_ITEMS = 100
GROUP_ITEMS = WriterSettings().group_items_max
NEW_PER_REPEAT = 4
"""New records for each redelivered one: a fifth of all records is redelivered."""

_BODIES = 1000
_BODY_BYTES = 1024

Record = Sequence[ItemOutcome]
Group = list[ItemOutcome]
"""The items of one transaction."""


def bodies() -> list[bytes]:
    """Return bodies of 1 KB; many rows share one, which makes no difference to the database."""
    return [(chat_answer(i) + b" " * _BODY_BYTES)[:_BODY_BYTES] for i in range(_BODIES)]


def records(results: int) -> list[Record]:
    """Return the new records of `results` results in all, redelivered ones included."""
    new = results // RECORD_ITEMS * NEW_PER_REPEAT // (NEW_PER_REPEAT + 1)
    body = bodies()
    return [
        [
            ItemOutcome(
                index=index,
                custom_id=custom_id(index),
                outcome=Outcome.SUCCEEDED,
                status_code=200,
                body=body[index % _BODIES],
                input_tokens=230,
                output_tokens=160,
            )
            for index in range(first, first + RECORD_ITEMS)
        ]
        for first in range(0, new * RECORD_ITEMS, RECORD_ITEMS)
    ]


def spread(new: Sequence[Record]) -> Iterator[Record]:
    """Yield every record, and after each fourth the first of these four again."""
    for position, record in enumerate(new, start=1):
        yield record
        if position % NEW_PER_REPEAT == 0:
            yield new[position - NEW_PER_REPEAT]


def burst(new: Sequence[Record]) -> Iterator[Record]:
    """Yield every record, and halfway the quarter before again, as after a crash."""
    half, quarter = len(new) // 2, len(new) // NEW_PER_REPEAT
    yield from new[:half]
    yield from new[half - quarter : half]
    yield from new[half:]


ORDERS: dict[str, Callable[[Sequence[Record]], Iterator[Record]]] = {
    "spread": spread,
    "burst": burst,
}


def group_records(order: Iterator[Record]) -> list[Group]:
    """Return transactions as full as the writer's."""
    groups: list[Group] = [[]]
    for record in order:
        if len(groups[-1]) + len(record) > GROUP_ITEMS:
            groups.append([])
        groups[-1] += record
    return groups


def plain_rows(results: int, job_id: UUID, day: int) -> list[tuple[Any, ...]]:
    """Return as many rows as there are results, ready for COPY, with unique keys."""
    body = bodies()
    job = job_id.bytes
    absent = (None, None)
    return [
        (
            *(job, day, index, 1, 200, 1, 230, 160, 0, 0, custom_id(index)),
            *(*absent, body[index % _BODIES], None),
        )
        for index in range(results)
    ]
