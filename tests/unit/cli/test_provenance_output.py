"""Goal: the table of what ran a job's items has every count."""

from cli.batch.provenance_command import provenance_rows


def test_rows_have_models_and_last_the_items_of_which_it_is_not_known() -> None:
    adapter = {"model": "law", "version": "2", "base_version": "1", "engine": "e", "items": 8}
    plain = {"model": "small", "version": "1", "base_version": None, "engine": None, "items": 90}
    rows = [("law", "2", "1", "e", "8"), ("small", "1", "", "", "90")]

    assert provenance_rows({"data": [adapter, plain], "unknown_items": 0}) == rows
    assert provenance_rows({"data": [adapter, plain], "unknown_items": 2}) == [
        *rows, ("", "", "", "", "2")
    ]  # fmt: skip
