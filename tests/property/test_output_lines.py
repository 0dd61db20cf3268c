"""Goal: every line is one JSON object on one line that repeats id and body exactly."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from core.ids import new_uuid
from core.outcomes import Outcome
from results.finaliser.output_lines import ItemRow, LineTemplate

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
