"""Goal: what is run again is asked for as the old job was."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.redriving import Redrive, redrive_job


@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_redrive_computes_identical_items_once_if_the_old_job_did(deduplicate: bool) -> None:
    old = SimpleNamespace(
        id=UUID(int=1),
        metadata={"a": "b"},
        endpoint="/v1/embeddings",
        completion_window="24h",
        output_expires_after_s=None,
        deduplicate=deduplicate,
    )
    redrive = Redrive(cast("sa.Row[Any]", old), [], [], is_rest=True)
    new = redrive_job(redrive, UUID(int=2), completion_window=None, metadata=None)
    assert new.options.deduplicate is deduplicate
    assert new.metadata == {"a": "b", "redrive_of": f"batch_{1:032x}"}
