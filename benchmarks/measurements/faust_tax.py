"""A11: the cost of Faust in the batcher, against a bare aiokafka consumer on the same records.

What: items a second of a reader that decodes and acknowledges every chunk, at 1, 10 and 100 items
of 1 KB a record. Ours is `batcher.faust_app.request_stream` as the role builds it (same app
settings, same patches, received records rebuilt for the role, ordered acknowledgement); the peer is
`AIOKafkaConsumer.getmany` with offsets committed at the same interval. Both decode with the same
code on the same event loop.
How: the topic is filled once for each size. Each run is a process with a consumer group of its own
that reads from the start, timed from its first record to its last, so joining the group is not
measured.

Goal: at least 0.8 at 100 items a record.
"""

from functools import partial
from pathlib import Path

from benchmarks.children.line_child import run_child
from benchmarks.data.chunk_topic import fill_topic
from benchmarks.runs import Pair, Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.services import running_kafka
from benchmarks.statistics.pairing import paired_row, run_pairs

SIZES = {1: (100_000, 2_000), 10: (300_000, 5_000), 100: (600_000, 20_000)}
"""Items a record to the items of a full and a quick run."""

GOALS = {100: "ratio ≥ 0.8"}
DONE_S_MAX = 300.0


def measure(setup: Setup) -> Report:
    """Run the benchmark. Raises VoidRunError."""
    rows: list[Row] = []
    pairs: list[Pair] = []
    voids: list[str] = []
    with running_kafka(setup.work) as kafka:
        for record_items, (full, quick) in SIZES.items():
            items = setup.count(full, quick) // record_items * record_items
            prefix = f"tax-{record_items}."
            setup.note(f"{record_items} items a record, {items:,} items")
            fill_topic(kafka.address, prefix, items=items, record_items=record_items)
            read = partial(_read, kafka.address, prefix, items, setup.work)
            found, void = run_pairs(partial(read, "faust"), partial(read, "aiokafka"), setup)
            name, goal = f"{record_items} a record", GOALS.get(record_items, "")
            rows += [
                paired_row(name, "items/s", found, lambda run: run.rate, goal=goal),
                paired_row(f"{name}: the reader", "µs CPU/item", found, lambda run: run.cpu_us),
            ]
            pairs += found
            voids += void
    return Report(name="faust_tax", rows=rows, pairs=pairs, voids=voids)


def _read(servers: str, prefix: str, items: int, folder: Path, side: str) -> Run:
    module = f"benchmarks.children.{side}_reader"
    found = run_child(side, module, [servers, prefix, str(items)], folder, DONE_S_MAX)
    if found["items"] != items or found["distinct"] != items:
        raise VoidRunError(f"{side} read {found['items']} items, {found['distinct']} distinct")
    # The first record starts the clock, so its items are not timed.
    timed = items - found["first_items"]
    return Run(items=timed, seconds=found["seconds"], cpu_s={side: found["cpu_s"]})
