"""Goal: a redrive inherits the options of the old job, and its edits are applied or rejected."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.errors import InvalidFieldError
from jobs.input.input_files import InputFiles
from jobs.store.redrive import Redrive, check_edits, edit_line, new_redrive_job


@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_redrive_inherits_deduplication_hours_and_metadata(deduplicate: bool) -> None:
    old = SimpleNamespace(
        id=UUID(int=1),
        metadata={"a": "b"},
        endpoint="/v1/embeddings",
        completion_window="24h",
        output_expires_after_s=None,
        deduplicate=deduplicate,
        bulk_hours="22:00-06:00 UTC",
    )
    redrive = Redrive(cast("sa.Row[Any]", old), InputFiles("in"), [], is_rest=True)
    new = new_redrive_job(redrive, UUID(int=2), completion_window=None, metadata=None)
    assert new.options.deduplicate is deduplicate
    assert new.options.bulk_hours == "22:00-06:00 UTC"
    assert new.metadata == {"a": "b", "redrive_of": f"batch_{1:032x}"}


@pytest.mark.parametrize("value", ["1" * 5000, "1e999", "[" * 5000 + "]" * 5000])
def test_a_line_that_cannot_be_encoded_again_is_reported(value: str) -> None:
    line = b'{"custom_id":"a","body":{"seed":%s}}' % value.encode()
    with pytest.raises(InvalidFieldError) as refused:
        edit_line(line, {"user": "u"}, 7)
    assert refused.value.param == "edits"
    assert "Item 7 " in str(refused.value)


def test_a_line_is_patched() -> None:
    line = b'{"custom_id":"a","body":{"seed":1,"user":"u"}}'
    patched = edit_line(line, {"seed": None, "n": [1]}, 7)
    assert patched == b'{"custom_id":"a","body":{"user":"u","n":[1]}}'


@pytest.mark.parametrize("is_list", [True, False])
def test_deeply_nested_edits_are_rejected(is_list: bool) -> None:
    def nested(depth: int) -> Any:
        value: Any = "text"
        for _ in range(depth):
            value = [value] if is_list else {"a": value}
        return value

    check_edits({"a": nested(30)})
    with pytest.raises(InvalidFieldError) as refused:
        check_edits({"a": nested(40)})
    assert refused.value.param == "edits"
