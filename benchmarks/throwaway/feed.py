"""File to chunk records: `python -m benchmarks.throwaway.feed SERVERS RUN FILE`."""

import sys

import msgspec

from benchmarks.children.line_child import die_with_parent, say, wait_for_line
from benchmarks.throwaway.wire import CHUNK_ITEMS, REQUESTS, Item, Output


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


def main(servers: str, run: str, path: str) -> None:
    """Send every line once told to; remember ids, which is all the checking there is."""
    output, seen, items = Output(servers, REQUESTS + run), set(), []
    decode = msgspec.json.Decoder(_Line).decode
    say("ready")
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
    say("done", str(len(seen)))
    wait_for_line()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
