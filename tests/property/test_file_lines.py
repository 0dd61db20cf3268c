"""Goal: blocks do not change the lines of an input; an output line repeats id and body exactly."""

import json
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core.ids import new_uuid
from core.outcomes import Outcome
from jobs.input.line_reader import BOM, Line, input_lines
from results.finaliser.output_lines import ItemRow, LineTemplate

LIMIT = 6

files = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b" ", BOM, b"0123456789", b"\xef", b"\n\n"]),
    max_size=30,
).map(b"".join)


def simple_lines(data: bytes) -> list[Line]:
    """Return the expected lines by a simple implementation."""
    found: list[Line] = []
    offset = len(BOM) if data.startswith(BOM) else 0
    for number, line in enumerate(data[offset:].split(b"\n"), 1):
        if len(line) > LIMIT and line.strip():
            found.append((number, offset, None))
        elif line.strip():
            found.append((number, offset, line))
        elif len(line) > LIMIT:
            found.append((number, offset, None))
        offset += len(line) + 1
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(data=files, places=st.lists(st.integers(0, 200)))
def test_any_split_into_blocks_yields_the_same_lines(data: bytes, places: list[int]) -> None:
    assert list(input_lines(cut(data, places), line_bytes_max=LIMIT)) == simple_lines(data)


@given(data=files)
def test_reading_can_resume_at_every_line(data: bytes) -> None:
    all_lines = list(input_lines([data], line_bytes_max=LIMIT))
    for index, (number, offset, _) in enumerate(all_lines):
        rest = input_lines(
            [data[offset:]], line_bytes_max=LIMIT, offset=offset, lines_before=number - 1
        )
        if offset:
            assert list(rest) == all_lines[index:]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(
    index=st.integers(0, 2**31 - 1),
    custom_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    status_code=st.integers(1, 599),
    body=json_values,
    indent=st.sampled_from([None, 2]),
)
def test_an_answered_line_reads_back(
    index: int, custom_id: str, status_code: int, body: object, indent: int | None
) -> None:
    text = json.dumps(body, indent=indent).encode()
    row = ItemRow(index, Outcome.SUCCEEDED, status_code, custom_id, None, None, text, None)
    job_id = new_uuid()

    line = b"".join(LineTemplate(job_id).line(row, custom_id))

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line) == {
        "id": f"batch_req_{job_id.hex}{index:08x}",
        "custom_id": custom_id,
        "response": {
            "status_code": status_code,
            "request_id": f"req_{job_id.hex}{index:08x}",
            "body": body,
        },
        "error": None,
    }


@given(custom_id=st.text(st.characters(exclude_categories=["Cs"])), message=st.text())
def test_an_unanswered_line_reads_back(custom_id: str, message: str) -> None:
    message = message.encode("utf-8", "replace").decode()
    row = ItemRow(0, Outcome.FAILED, 0, custom_id, "code", message or None, None, None)

    line = b"".join(LineTemplate(new_uuid()).line(row, custom_id))

    assert line.count(b"\n") == 1
    read = json.loads(line)
    assert (read["custom_id"], read["response"]) == (custom_id, None)
    assert read["error"]["code"] == "code"
    assert read["error"]["message"] == (message or "This request failed.")
