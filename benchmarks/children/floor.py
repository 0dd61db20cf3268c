"""The least work from input file to output file: `… .floor INPUT OUTPUT`.

One process without broker, database or unbounded buffers: read, parse with a raw body, pack an
envelope of 100 items, unpack it, build each result line, write.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from benchmarks.data.input_files import InputLine, chat_answer

CHUNK_ITEMS = 100


class _Item(msgspec.Struct, array_like=True, gc=False):
    index: int
    custom_id: str
    body: msgspec.Raw


_RESULT = (
    b'{"id":"batch_req_%032x","custom_id":%b,"response":{"status_code":200,'
    b'"request_id":"req_%032x","body":%b},"error":null}\n'
)


def convert(source: BinaryIO, target: BinaryIO) -> None:
    """Convert every input line to its output line."""
    encode = msgspec.json.encode
    decode = msgspec.json.Decoder(list[_Item]).decode
    for items in _chunks(source):
        target.writelines(
            [
                _RESULT % (i.index, encode(i.custom_id), i.index, chat_answer(i.index))
                for i in decode(encode(items))
            ]
        )


def _chunks(source: BinaryIO) -> Iterator[list[_Item]]:
    decode = msgspec.json.Decoder(InputLine).decode
    items: list[_Item] = []
    for index, text in enumerate(source):
        line = decode(text)
        items.append(_Item(index, line.custom_id, line.body))
        if len(items) == CHUNK_ITEMS:
            yield items
            items = []
    if items:
        yield items


def main(source: str, target: str) -> None:
    """Convert, and report wall and CPU time."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    with open(source, "rb") as reading, open(target, "wb") as writing:  # noqa: PTH123
        convert(reading, writing)
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    report_line("result", json.dumps({"seconds": seconds, "cpu_s": cpu_s}))
    wait_for_line()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
