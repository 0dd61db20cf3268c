"""Goal: a quota is never exceeded, whatever the types of the pools, and the neediest come first."""

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.loop.quota_sharing import QuotaShares
from autoscaler.policy.placement import plan_additions
from tests.support.scaling import gpu_type, rules_of, signals_of, warm

RULES = rules_of(gpu_types=(gpu_type(), gpu_type("h100", cost_per_hour=0.5)))


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 20), st.sampled_from([1, 2, 4])),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_additions_of_all_pools_stay_within_the_quota(
    pools: list[tuple[int, int, int]], l4_quota: int, h100_quota: int
) -> None:
    shares = QuotaShares({"l4": l4_quota, "h100": h100_quota})
    for number, (live, needed, gpus) in enumerate(pools):
        signals = signals_of(replicas=warm(live))
        shares.add_pool(str(number), RULES, signals, needed=needed, gpus_per_replica=gpus)
    used = {"l4": sum(live * gpus for live, _, gpus in pools), "h100": 0}
    had = dict(used)
    order = shares.share()
    assert sorted(order) == sorted(map(str, range(len(pools))))
    for pool in order:
        live, needed, gpus = pools[int(pool)]
        rules = shares.rules_for(pool, RULES)
        added = plan_additions(rules, warm(live), needed - live).replicas
        shares.count_additions(pool, added)
        for one in added:
            used[one.gpu_type] += gpus

    assert used["l4"] <= max(l4_quota, had["l4"])
    assert used["h100"] <= h100_quota


def test_the_rest_goes_one_by_one_to_the_pool_that_lacks_most() -> None:
    rules = rules_of(gpu_types=(gpu_type(),))
    shares = QuotaShares({"l4": 9})
    for pool, live, needed in (("full", 4, 5), ("empty", 0, 4), ("half", 1, 2)):
        signals = signals_of(replicas=warm(live))
        shares.add_pool(pool, rules, signals, needed=needed, gpus_per_replica=1)
    quotas = {}
    for pool in shares.share():
        signals = signals_of(replicas=warm({"full": 4, "empty": 0, "half": 1}[pool]))
        found = shares.rules_for(pool, rules)
        needed = {"full": 5, "empty": 4, "half": 2}[pool]
        added = plan_additions(found, signals.replicas, needed - len(signals.replicas)).replicas
        shares.count_additions(pool, added)
        quotas[pool] = len(signals.replicas) + len(added)

    assert quotas == {"empty": 3, "half": 2, "full": 4}


def test_pools_without_a_quota_are_not_bounded() -> None:
    shares = QuotaShares({"l4": None})
    shares.add_pool("a", RULES, signals_of(), needed=5, gpus_per_replica=1)
    assert shares.rules_for("a", RULES) == RULES
