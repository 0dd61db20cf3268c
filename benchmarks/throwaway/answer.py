"""Turns batches into results from a template: `… .answer SERVERS RUN ITEMS`."""

import sys

import msgspec

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.data.input_files import chat_answer
from benchmarks.throwaway.wire import BATCHES, RESULTS, Result, TopicWriter, decode_items, subscribe

_RECORDS = 20


def main(servers: str, run: str, items: str) -> None:
    """Answer until every item has passed."""
    output, count = TopicWriter(servers, RESULTS + run), 0
    consumer = subscribe(servers, f"answer{run}", BATCHES + run)
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
    report_line("done")
    wait_for_line()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
