"""Goal: a line of a result file is what OpenAI's clients expect, for any row."""

import json
from uuid import UUID

import pytest

from core.outcomes import Outcome
from results.finaliser.line_provenance import line_tag
from results.finaliser.output_lines import AFTER_BODY, ItemRow, LineTemplate, belongs_to_output

JOB = UUID("00112233445566778899aabbccddeeff")
TEMPLATE = LineTemplate(JOB)


def row(**fields: object) -> ItemRow:
    given: dict[str, object] = {
        "item_index": 255,
        "outcome": Outcome.SUCCEEDED,
        "status_code": 200,
        "custom_id": "a",
        "error_code": None,
        "error_message": None,
        "body": b'{"id":"x"}',
        "body_key": None,
    }
    return ItemRow(**(given | fields))  # type: ignore[arg-type]


def line(row: ItemRow, custom_id: str) -> bytes:
    return b"".join(TEMPLATE.line(row, custom_id))


def test_body_is_copied_byte_by_byte() -> None:
    assert line(row(), "a") == (
        b'{"id":"batch_req_00112233445566778899aabbccddeeff000000ff","custom_id":"a","response":'
        b'{"status_code":200,"request_id":"req_00112233445566778899aabbccddeeff000000ff",'
        b'"body":{"id":"x"}},"error":null}\n'
    )


def test_http_failure_is_a_response_in_the_error_file() -> None:
    refused = row(outcome=Outcome.FAILED, status_code=400, body=b'{"error":{"message":"no"}}')

    shown = json.loads(line(refused, "a"))

    assert shown["response"]["status_code"] == 400
    assert shown["response"]["body"] == {"error": {"message": "no"}}
    assert shown["error"] is None
    assert not belongs_to_output(refused)


@pytest.mark.parametrize(
    ("code", "message", "shown"),
    [
        ("batch_cancelled", None, "This request was cancelled before it was executed."),
        (
            "batch_expired",
            None,
            "This request could not be executed before the completion window expired.",
        ),
        ("result_unstorable", None, "The result of this request could not be stored."),
        ("item_too_slow", 'It took "too" long.', 'It took "too" long.'),
        ("unheard_of", None, "This request failed."),
        (None, None, "This request failed."),
    ],
)
def test_item_without_an_answer_has_code_and_message(
    code: str | None, message: str | None, shown: str
) -> None:
    never = row(
        outcome=Outcome.CANCELLED, status_code=0, error_code=code, error_message=message, body=None
    )

    assert json.loads(line(never, "a")) == {
        "id": f"batch_req_{JOB.hex}000000ff",
        "custom_id": "a",
        "response": None,
        "error": {"code": code or "request_failed", "message": shown},
    }
    assert not belongs_to_output(never)


def test_empty_body_is_null() -> None:
    assert json.loads(line(row(body=None), "a"))["response"]["body"] is None


def test_pretty_printed_body_stays_on_its_line() -> None:
    shown = line(row(body=b'{\r\n  "a": "b\\n"\n}'), "a")

    assert shown.count(b"\n") == 1
    assert b"\r" not in shown
    assert json.loads(shown)["response"]["body"] == {"a": "b\n"}


def test_body_in_an_object_fits_between_start_and_end() -> None:
    opening = TEMPLATE.before_body(row(body=None), "a")

    assert opening + b'{"id":"x"}' + AFTER_BODY == line(row(), "a")


def test_version_and_engine_are_the_last_field_of_each_kind_of_line() -> None:
    tag = line_tag("0" * 64, "e" * 64)
    shown = {"version": "0" * 12, "engine": "e" * 12}
    unanswered = row(status_code=0, error_code="item_timeout", body=None)
    for one in (row(), unanswered):
        found = b"".join(TEMPLATE.line(one, "a", tag))
        assert json.loads(found) == json.loads(line(one, "a")) | {"millrace": shown}
        assert list(json.loads(found))[-1] == "millrace"
        assert found.endswith(b"}\n")
    assert json.loads(b"{" + line_tag("legacy 1", "")[1:] + b"}") == {
        "millrace": {"version": "legacy 1"}
    }
