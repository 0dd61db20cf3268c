"""Goal: a job is shown completely, without empty fields."""

import pytest
import typer

from cli.batch.job_display import LIST_HEADERS, JobDisplay, list_row, print_outcome, status_rows
from cli.batch.submit_command import metadata_pairs
from tests.unit.cli.batches import batch

INVALID = {
    "object": "list",
    "data": [
        {"code": "invalid_json_line", "line": n, "message": "It is not JSON."} for n in range(1, 8)
    ],
}


def test_metadata_is_parsed() -> None:
    assert metadata_pairs(["a=1", "b=x=y", "a=2"]) == {"a": "2", "b": "x=y"}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_invalid_metadata_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        metadata_pairs([text])


def test_status_omits_empty_fields() -> None:
    rows = dict(status_rows(batch()))

    assert rows["items"] == "10"
    assert rows["created"] == "1970-01-01T00:00:00+00:00"
    assert "output file" not in rows


def test_status_shows_the_first_validation_errors() -> None:
    rows = status_rows(batch("failed", errors=INVALID))
    errors = [text for name, text in rows if name == "error"]

    assert errors[0] == "line 1: It is not JSON. (invalid_json_line)"
    assert errors[-1].startswith("and 2 more")


def test_list_row_matches_the_headers() -> None:
    assert len(list_row(batch())) == len(LIST_HEADERS)


def test_outcome_names_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome(batch("completed", output_file_id="file-2", error_file_id="file-3"), None, None)

    written = capsys.readouterr()
    assert written.out == ""
    assert "millrace batch results batch_1 -o FILE --errors FILE" in written.err


def test_display_without_terminal_writes_a_line_per_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with JobDisplay("batch_1") as display:
        for state in ("validating", "in_progress", "in_progress", "completed"):
            display.show(batch(state))

    written = capsys.readouterr()
    assert written.out == ""
    assert [line.split()[1] for line in written.err.splitlines()] == [
        "validating",
        "in_progress",
        "completed",
    ]


def test_quiet_display_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with JobDisplay("batch_1", quiet=True) as display:
        display.show(batch())

    assert capsys.readouterr().err == ""
