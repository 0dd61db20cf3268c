"""Goal: a promise is kept in its class, and no tenant takes the places of the others."""

import pytest

from core.overload.admission_control import AdmissionControl, AdmissionRequest
from core.overload.retry_promises import Client
from core.overload.shedding import CallQueue, ShedClass, SheddingLimits

OVER, WITHIN = ShedClass.OVER_QUOTA_INTERACTIVE, ShedClass.INTERACTIVE
LIMITS = SheddingLimits(120.0, (0.25, 0.5, 0.75))
PER_S = 10.0
LIMIT = 120 * PER_S
"""Calls that wait when the pool is full. For a tenant above its share it is 0.75 of that."""


def new_control() -> AdmissionControl[str]:
    return AdmissionControl(LIMITS, retry_after_s_max=59, grace_s=5.0)


def admit(
    control: AdmissionControl[str],
    tenant: str,
    request: int = 0,
    *,
    shed_class: ShedClass = WITHIN,
    share: float = 0.1,
    waiting: float = LIMIT + 1,
    part: float = 1.0,
    now_s: float = 0.0,
) -> int | None:
    call = AdmissionRequest("p", Client(tenant, request), shed_class, 600.0, share)
    queue = control.queue("p", waiting, PER_S, part=part, now_s=now_s)
    assert isinstance(queue, CallQueue)
    return control.admit(call, queue, now_s=now_s)


def test_a_tenant_that_is_above_its_share_at_its_return_keeps_its_promised_class() -> None:
    control = new_control()
    told = [admit(control, "a", request) for request in range(3)]
    now_s = max(filter(None, told))
    # One call more has left than was above the limit; the first that return take the tenant above.
    assert admit(control, "a", 0, waiting=LIMIT, now_s=now_s) is None
    assert admit(control, "a", 1, shed_class=OVER, waiting=LIMIT, now_s=now_s) is None
    assert admit(control, "a", 9, shed_class=OVER, waiting=LIMIT, now_s=now_s) is not None
    assert (
        control.promises.of_tenant("p", "a") == 2
    )  # of the one that did not return, and of the new one


def test_a_promise_to_a_tenant_above_its_share_is_no_place_among_those_within() -> None:
    """Its class is better at its return, but the places of that class are promised to others."""
    control = new_control()
    retry_s = admit(control, "a", shed_class=OVER, waiting=LIMIT * 0.75 + 1)
    assert retry_s is not None
    for request in range(100):
        admit(control, f"b{request}", request)
    full_but_promised = LIMIT - 50
    assert admit(control, "a", waiting=full_but_promised, now_s=retry_s) is not None


def test_a_promise_above_the_share_is_no_worse_than_none_for_a_tenant_within_it() -> None:
    control = new_control()
    retry_s = admit(control, "a", shed_class=OVER, waiting=LIMIT * 0.75 + 1)
    assert retry_s is not None
    assert admit(control, "a", waiting=LIMIT - 50, now_s=retry_s) is None
    assert control.promises.count == 0


def test_repeats_before_the_time_take_no_further_places_and_are_told_the_rest() -> None:
    control = new_control()
    for request in range(50):
        admit(control, f"b{request}")
    first_s = admit(control, "a")
    assert first_s is not None
    for passed_s in (0.0, 0.5, 1.0, first_s - 0.1):
        assert admit(control, "a", now_s=passed_s) == max(1, round(first_s - passed_s + 0.49))
    assert control.promises.of_tenant("p", "a") == 1
    assert admit(control, "a", waiting=LIMIT, now_s=first_s) is None


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_a_flood_of_bodies_takes_the_share_of_its_tenant_and_costs_others_no_more(
    part: float,
) -> None:
    control, share = new_control(), 0.05
    for request in range(30):
        admit(control, f"b{request}", part=part)
    before_s = admit(control, "victim", part=part)
    flood = [admit(control, "flood", request, share=share, part=part) for request in range(5_000)]
    of_flood = control.promises.of_tenant("p", "flood")
    assert of_flood == round(share * PER_S * 59 * part + 0.49)
    assert flood[-1] == 59  # promised nothing
    after_s = admit(control, "next victim", part=part)
    assert before_s is not None
    assert after_s is not None
    # At a share of a twentieth: those of 3 s, and more of the deviation that is added.
    assert after_s <= before_s + 5
    assert control.promises.of_tenant("p", "next victim") == 1


def test_each_tenant_may_have_one_promise() -> None:
    control = new_control()
    assert admit(control, "small", share=1e-6) != 59
    assert control.promises.of_tenant("p", "small") == 1
    assert admit(control, "small", 1, share=1e-6) == 59
    assert control.promises.of_tenant("p", "small") == 1


def test_a_question_changes_nothing() -> None:
    control = new_control()
    call = AdmissionRequest("p", Client("a", 0), WITHIN, 600.0)
    queue = control.queue("p", LIMIT + 1, PER_S, now_s=0.0)
    assert control.is_refused(call, queue, now_s=0.0)
    assert control.promises.count == 0
