"""Goal: a record may name objects of its own job or call only."""

from uuid import UUID

import msgspec
import pytest

from core.object_names import answer_prefix, job_key_name
from tests.unit.batcher.builders import job_ref
from topics.metrics import FOREIGN_OBJECTS
from topics.records.object_keys import (
    ForeignObjectError,
    require_own_answer,
    require_own_data_key,
    require_own_input,
)
from topics.records.records import CallRef, JobRef

JOB, OTHER = UUID(int=1), UUID(int=2)


def job(*, is_call: bool = False, input_key: str = "", key_name: str = "") -> JobRef:
    return msgspec.structs.replace(
        job_ref(),
        job_id=JOB,
        call=CallRef("api-1", 0) if is_call else None,
        input_key=input_key,
        key_name=key_name,
    )


@pytest.mark.parametrize(
    ("is_call", "key", "is_own"),
    [
        (False, f"files/{OTHER.hex}", True),  # files have names of their own
        (False, f"requests/{JOB.hex}.jsonl", True),
        (False, f"requests/{OTHER.hex}.jsonl", False),
        (False, f"answers/{JOB.hex}/1", False),
        (False, f"results/{JOB.hex}/1", False),
        (False, "", False),
        (True, f"requests/{JOB.hex}", True),
        (True, f"requests/{JOB.hex}.jsonl", True),
        (True, f"requests/{OTHER.hex}", False),
        (True, f"files/{JOB.hex}", False),
    ],
)
def test_input(is_call: bool, key: str, is_own: bool) -> None:
    ref = job(is_call=is_call, input_key=key)
    if is_own:
        require_own_input(ref)
        return
    counted = FOREIGN_OBJECTS.labels("input_key")._value.get()
    with pytest.raises(ForeignObjectError) as refusal:
        require_own_input(ref)
    assert "files" not in str(refusal.value)
    assert FOREIGN_OBJECTS.labels("input_key")._value.get() == counted + 1


@pytest.mark.parametrize(
    ("is_call", "key", "is_own"),
    [
        (False, job_key_name(JOB), True),
        (False, job_key_name(OTHER), False),
        (False, "keys/calls/api-1", False),
        (True, job_key_name(JOB), True),
        (True, "keys/calls/api-1", True),
        (True, job_key_name(OTHER), False),
    ],
)
def test_data_key(is_call: bool, key: str, is_own: bool) -> None:
    ref = job(is_call=is_call, key_name=key)
    if is_own:
        require_own_data_key(ref)
        return
    with pytest.raises(ForeignObjectError):
        require_own_data_key(ref)


@pytest.mark.parametrize("key", [f"{answer_prefix(OTHER)}1", f"answers/{JOB.hex}", "keys/1", ""])
def test_answer(key: str) -> None:
    require_own_answer(JOB, f"{answer_prefix(JOB)}1")
    with pytest.raises(ForeignObjectError):
        require_own_answer(JOB, key)
