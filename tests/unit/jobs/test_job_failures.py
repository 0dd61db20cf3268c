"""Goal: a job failure does not stop the role; a process failure does."""

import pytest

from core.errors import MillraceError
from core.ids import new_uuid
from jobs.expansion.emission import InputChangedError
from jobs.expansion.job_failures import is_job_failure, record_job_failure
from storage.crypto.data_keys import DataKeyDestroyedError
from storage.objects.errors import (
    ObjectKeyError,
    ObjectNotFoundError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from topics.errors import DeliveryError, ProducerFatalError


@pytest.mark.parametrize(
    "failure",
    [
        InputChangedError(),
        DataKeyDestroyedError(),
        ObjectKeyError(),
        ObjectNotFoundError(),
        ObjectStoreUnavailableError(),
        ObjectStoreRefusedError(s3_code="InvalidObjectState"),
    ],
    ids=lambda failure: failure.code,
)
def test_a_job_failure_is_recorded(failure: MillraceError) -> None:
    assert is_job_failure(failure)
    record_job_failure(new_uuid(), failure, "a job failed")


@pytest.mark.parametrize("failure", [DeliveryError(), ProducerFatalError(), MillraceError()])
def test_a_process_failure_is_raised(failure: MillraceError) -> None:
    assert not is_job_failure(failure)
    with pytest.raises(MillraceError):
        record_job_failure(new_uuid(), failure, "a job failed")
