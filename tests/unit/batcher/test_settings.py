"""Goal: settings that could block Faust's fetch loop are rejected."""

import pytest

from batcher.settings import FILL_RATIO_MAX, BatcherSettings
from core.errors import SettingsError
from topics.records.catalogue import REQUESTS


@pytest.mark.parametrize("job_class", ["bulk", "interactive"])
def test_defaults_respect_the_fill_ratio(job_class: str) -> None:
    settings = BatcherSettings.from_env({"MILLRACE_BATCHER_JOB_CLASS": job_class})
    polled = REQUESTS[job_class].partition_count * settings.poll_records
    assert polled <= FILL_RATIO_MAX * settings.buffer_records


def test_buffer_that_could_fill_is_rejected() -> None:
    with pytest.raises(SettingsError, match="buffer_records"):
        BatcherSettings.from_env({"MILLRACE_BATCHER_POLL_RECORDS": "100"})


def test_only_bulk_waits_by_default() -> None:
    assert BatcherSettings(job_class="bulk").wait_s_max == 0.02
    assert BatcherSettings(job_class="interactive").wait_s_max == 0.0
    assert BatcherSettings(job_class="interactive", wait_ms_max=5).wait_s_max == 0.005
