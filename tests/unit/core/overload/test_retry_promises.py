"""Goal: a promise is used once, by its own client, from its time on and within the grace period."""

from core.overload.retry_promises import Client, RetryPromises
from core.overload.shedding import NONE_PROMISED, ShedClass

OVER, WITHIN = ShedClass.OVER_QUOTA_INTERACTIVE, ShedClass.INTERACTIVE
A, A2, B = Client("a", 1), Client("a", 2), Client("b", 1)


def new_promises(count_max: int = 10) -> RetryPromises[str]:
    return RetryPromises(grace_s=5.0, count_max=count_max)


def test_a_promise_is_due_from_its_time_for_its_caller_and_pool() -> None:
    promises = new_promises()
    promises.add("p", A, OVER, 10.0)
    assert promises.due_class("p", A, now_s=9.9) is None
    assert promises.due_class("p", A, now_s=10.0) is OVER
    assert promises.due_class("p", A2, now_s=10.0) is None
    assert promises.due_class("p", B, now_s=10.0) is None
    assert promises.due_class("q", A, now_s=10.0) is None


def test_promises_are_counted_by_class_and_tenant_until_they_are_used() -> None:
    promises = new_promises()
    promises.add("p", A, OVER, 10.0)
    promises.add("p", A2, WITHIN, 12.0)
    promises.add("p", B, WITHIN, 12.0)
    assert promises.promised("p", now_s=0.0) == (0, 0, 1, 2)
    assert (promises.of_tenant("p", "a"), promises.of_tenant("q", "a")) == (2, 0)
    promises.use("p", A)
    assert promises.promised("p", now_s=0.0) == (0, 0, 0, 2)
    assert promises.of_tenant("p", "a") == 1
    for client in (A, A2, B):
        promises.use("p", client)
    assert promises.promised("p", now_s=0.0) == NONE_PROMISED
    assert promises.count == promises.of_tenant("p", "a") == 0


def test_an_unused_promise_ends_after_the_grace_period() -> None:
    promises = new_promises()
    promises.add("p", A, WITHIN, 10.0)
    assert promises.promised("p", now_s=15.0) == (0, 0, 0, 1)
    assert promises.due_class("p", A, now_s=15.1) is None
    promises.end_unused(15.1)
    assert promises.count == 0
    assert promises.promised("p", now_s=15.1) == NONE_PROMISED


def test_the_end_of_a_used_promise_does_not_end_a_later_one() -> None:
    promises = new_promises()
    promises.add("p", A, WITHIN, 10.0)
    promises.use("p", A)
    promises.add("p", A, WITHIN, 20.0)
    assert promises.promised("p", now_s=16.0) == (0, 0, 0, 1)


def test_a_client_has_one_promise() -> None:
    promises = new_promises()
    assert promises.add("p", A, WITHIN, 10.0)
    assert not promises.add("p", A, WITHIN, 12.0)
    assert promises.count == 1


def test_no_more_than_the_limit_is_promised() -> None:
    promises = new_promises(count_max=1)
    assert promises.add("p", A, WITHIN, 10.0)
    assert not promises.add("q", B, WITHIN, 10.0)
    assert promises.promised("q", now_s=0.0) == NONE_PROMISED
