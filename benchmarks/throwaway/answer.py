"""Batches to results, a template for an engine: `… .answer SERVERS RUN ITEMS`."""

import sys

import msgspec

from benchmarks.children.line_child import die_with_parent, say, wait_for_line
from benchmarks.data.input_files import chat_answer
from benchmarks.throwaway.wire import BATCHES, RESULTS, Output, Result, decode_items, subscribed

_RECORDS = 20


def main(servers: str, run: str, items: str) -> None:
    """Answer until every item has passed."""
    output, count = Output(servers, RESULTS + run), 0
    consumer = subscribed(servers, f"answer{run}", BATCHES + run)
    while count < int(items):
        for record in consumer.consume(_RECORDS, 1.0):
            batch = decode_items(record.value())
            count += len(batch)
            output.send(
                [
                    Result(i.index, i.custom_id, 200, msgspec.Raw(chat_answer(i.index)), 230, 160)
                    for i in batch
                ]
            )
    output.flush()
    say("done")
    wait_for_line()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
