"""Goal: no `Retry-After` is a minute: the official clients for Node and Go ignore it."""

import pytest

from api.http.errors import unavailable
from api.online.call_errors import queue_full, retry_after_seconds
from api.online.settings import OnlineSettings
from tests.support.admitted_calls import (
    CONCURRENCY,
    AdmissionSite,
    planned_call,
    retry_after,
    tenant,
)


def test_an_overloaded_pool_tells_59_s_at_most() -> None:
    site = AdmissionSite(OnlineSettings(predicted_wait_s_max=10.0))
    site.open(tenant(), 100 * CONCURRENCY)
    assert retry_after(site.refusal(planned_call(tenant()))) == 59


def test_other_refusals_tell_59_s_at_most() -> None:
    assert retry_after_seconds(1_000.0) == retry_after(queue_full(503, "", 60.0)) == 59
    with pytest.raises(AssertionError):
        unavailable("", retry_after_s=60, code="slow_down")


def test_the_setting_is_bounded() -> None:
    assert OnlineSettings().retry_after_s_max == 59
    with pytest.raises(ValueError, match="retry_after_s_max"):
        OnlineSettings(retry_after_s_max=60)
