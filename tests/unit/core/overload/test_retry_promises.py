"""Goal: a promise is used once, by its own client, from its time on and within the grace period."""

from core.overload.retry_promises import RetryPromises
from core.overload.shedding import NONE_PROMISED, ShedClass

OVER, WITHIN = ShedClass.OVER_QUOTA_INTERACTIVE, ShedClass.INTERACTIVE


def new_promises(count_max: int = 10) -> RetryPromises[str]:
    return RetryPromises(grace_s=5.0, count_max=count_max)


def test_a_promise_is_due_from_its_time_for_its_caller_and_pool() -> None:
    promises = new_promises()
    promises.add("p", "a", WITHIN, 10.0)
    assert not promises.is_due("p", "a", now_s=9.9)
    assert promises.is_due("p", "a", now_s=10.0)
    assert not promises.is_due("p", "b", now_s=10.0)
    assert not promises.is_due("q", "a", now_s=10.0)


def test_promises_are_counted_by_class_until_they_are_used() -> None:
    promises = new_promises()
    promises.add("p", "a", OVER, 10.0)
    promises.add("p", "a", WITHIN, 12.0)
    assert promises.promised("p", now_s=0.0) == (0, 0, 1, 1)
    promises.use("p", "a")
    assert promises.promised("p", now_s=0.0) == (0, 0, 0, 1)
    promises.use("p", "a")
    promises.use("p", "a")  # none is left
    assert promises.promised("p", now_s=0.0) == NONE_PROMISED
    assert promises.count == 0


def test_an_unused_promise_ends_after_the_grace_period() -> None:
    promises = new_promises()
    promises.add("p", "a", WITHIN, 10.0)
    assert promises.promised("p", now_s=15.0) == (0, 0, 0, 1)
    assert promises.promised("p", now_s=15.1) == NONE_PROMISED
    assert not promises.is_due("p", "a", now_s=15.1)


def test_the_end_of_a_used_promise_does_not_end_a_later_one() -> None:
    promises = new_promises()
    promises.add("p", "a", WITHIN, 10.0)
    promises.use("p", "a")
    promises.add("p", "a", WITHIN, 20.0)
    assert promises.promised("p", now_s=16.0) == (0, 0, 0, 1)


def test_no_more_than_the_limit_is_promised() -> None:
    promises = new_promises(count_max=1)
    assert promises.add("p", "a", WITHIN, 10.0)
    assert not promises.add("q", "b", WITHIN, 10.0)
    assert promises.promised("q", now_s=0.0) == NONE_PROMISED
