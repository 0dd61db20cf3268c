"""Goal: redrive edits are merged and checked; dead letters are shown."""

import pytest
import typer

from cli.batch.dead_letter_commands import letter_fields, letter_row, merge_edits

LETTER = {
    "id": "dead_00_3",
    "batch_id": "batch_00",
    "index": 0,
    "custom_id": "a",
    "code": "broken",
    "message": None,
    "status_code": 500,
    "attempts": 2,
    "failed_at": 0,
    "redriven_by": None,
    "history": [{"attempt": 1, "failed_at": 0, "code": "slow", "status_code": None}],
}


def test_set_options_override_the_edit_file() -> None:
    patch = b'{"max_tokens": 5, "options": {"a": 1}}'
    sets = ["max_tokens=64", "options.b.c=true", "user=me", "stop=null", "note=a=b"]
    assert merge_edits(patch, sets) == {
        "max_tokens": 64,
        "options": {"a": 1, "b": {"c": True}},
        "user": "me",
        "stop": None,
        "note": "a=b",
    }


@pytest.mark.parametrize("patch", [b"[]", b"{", b"\xff", b"3"])
def test_edit_file_must_be_an_object(patch: bytes) -> None:
    with pytest.raises(typer.BadParameter):
        merge_edits(patch, [])


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", ".=1"])
def test_set_option_needs_path_and_value(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        merge_edits(b"{}", [text])


def test_dead_letter_shows_its_fields() -> None:
    assert letter_row(LETTER)[:5] == ("dead_00_3", "a", "broken", "500", "2")
    shown = dict(letter_fields(LETTER))
    assert shown["index"] == "0"
    assert shown["attempt 1"].endswith("slow")
    assert "message" not in shown


@pytest.mark.parametrize(
    ("patch", "sets"),
    [
        (b"{}", ["temperature=NaN"]),
        (b"{}", ["a.b=-Infinity"]),
        (b"{}", ["a=[1e999]"]),
        (b'{"a": NaN}', []),
    ],
    ids=str,
)
def test_nan_and_infinity_are_refused(patch: bytes, sets: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="not valid JSON numbers"):
        merge_edits(patch, sets)
