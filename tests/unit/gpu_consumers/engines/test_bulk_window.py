"""Goal: bulk items fill vLLM without filling its KV cache."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.vllm.bulk_window import ROUND_S, BulkWindow, EngineLoad

SEQUENCES_MAX = 100


def window(size_max: int = 100, token_s_max: float | None = None) -> BulkWindow:
    return BulkWindow(size_max, sequences_max=SEQUENCES_MAX, token_s_max=token_s_max)


def load(kv_usage: float = 0.5, **fields: object) -> EngineLoad:
    return EngineLoad(**({"running": SEQUENCES_MAX, "waiting": 0, "kv_usage": kv_usage} | fields))  # type: ignore[arg-type]


def test_the_window_starts_whole_and_stays_while_the_engine_has_memory() -> None:
    one = window()
    assert one.update(load(), in_use=100, now_s=1.0) == 100
    assert one.update(load(waiting=20), in_use=100, now_s=2.0) == 100  # its own queue


def test_it_shrinks_once_until_the_engine_has_followed() -> None:
    one = window()
    assert one.update(load(0.95), in_use=100, now_s=1.0) == 80
    assert one.update(load(0.95), in_use=95, now_s=2.0) == 80
    assert one.update(load(0.95), in_use=80, now_s=3.0) == 64


def test_it_shrinks_from_what_runs_and_not_from_what_could() -> None:
    assert window().update(load(preempted=1), in_use=40, now_s=1.0) == 32


def test_it_keeps_its_size_while_online_calls_alone_fill_the_cache() -> None:
    assert window().update(load(0.95), in_use=0, now_s=1.0) == 100


def test_it_grows_step_by_step_while_it_limits_the_engine_and_memory_is_free() -> None:
    one = window()
    one.update(load(0.95), in_use=100, now_s=0.0)
    sizes = [one.update(load(0.5), in_use=one.size, now_s=1.0 + n) for n in range(10)]
    assert sizes[:3] == [83, 86, 89]
    assert sizes[-1] == 100


def test_it_does_not_grow_unused_near_the_limit_or_into_a_queue_of_the_engine() -> None:
    one = window()
    one.update(load(0.95), in_use=100, now_s=0.0)
    assert one.update(load(0.5), in_use=10, now_s=1.0) == 80
    assert one.update(load(0.85), in_use=80, now_s=2.0) == 80
    assert one.update(load(0.5, running=60, waiting=20), in_use=80, now_s=3.0) == 80


def test_slow_tokens_shrink_it_if_a_bound_is_set() -> None:
    assert window().update(load(token_s=9.0), in_use=100, now_s=1.0) == 100
    assert window(token_s_max=0.05).update(load(token_s=0.06), in_use=100, now_s=1.0) == 80


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 3), st.integers(0, 200), st.floats(0, 1)),
        max_size=100,
    )
)
def test_it_stays_between_one_item_and_the_largest_window(
    reports: list[tuple[float, int, int, float]],
) -> None:
    one, now_s, changed_s = window(), 0.0, float("-inf")
    for kv_usage, preempted, in_use, seconds in reports:
        now_s += seconds
        before = one.size
        size = one.update(load(kv_usage, preempted=preempted), in_use=in_use, now_s=now_s)
        assert 1 <= size <= 100
        if size != before:
            assert now_s - changed_s >= ROUND_S
            changed_s = now_s
