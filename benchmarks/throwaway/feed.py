"""Turns a file into chunk records: `python -m benchmarks.throwaway.feed SERVERS RUN FILE`."""

import sys

import msgspec

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.throwaway.wire import CHUNK_ITEMS, REQUESTS, Item, TopicWriter


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


def main(servers: str, run: str, path: str) -> None:
    """Send every line after the start signal; collecting the ids is the only check."""
    output, seen, items = TopicWriter(servers, REQUESTS + run), set(), []
    decode = msgspec.json.Decoder(_Line).decode
    report_line("ready")
    wait_for_line()
    with open(path, "rb") as file:  # noqa: PTH123
        for index, text in enumerate(file):
            line = decode(text)
            seen.add(line.custom_id)
            items.append(Item(index, line.custom_id, line.body))
            if len(items) == CHUNK_ITEMS:
                output.send(items)
                items = []
    if items:
        output.send(items)
    output.flush()
    report_line("done", str(len(seen)))
    wait_for_line()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
