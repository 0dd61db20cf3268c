"""Goal: shares are max-min fair, by weight, and all of the total is given while it is asked for."""

from hypothesis import given
from hypothesis import strategies as st

from core.fair_shares import fair_shares


@given(
    demands=st.dictionaries(st.integers(0, 20), st.integers(0, 1000)), total=st.integers(0, 5000)
)
def test_shares_are_max_min_fair(demands: dict[int, int], total: int) -> None:
    shares = fair_shares(demands, total)
    assert shares.keys() == demands.keys()
    assert all(0 <= shares[key] <= demand for key, demand in demands.items())
    assert sum(shares.values()) == min(total, sum(demands.values()))
    most = max(shares.values(), default=0)
    assert all(shares[key] >= most - 1 for key, demand in demands.items() if shares[key] < demand)


@given(
    demands=st.dictionaries(st.integers(0, 20), st.integers(0, 1000)),
    total=st.integers(0, 5000),
    seed=st.integers(0, 1000),
)
def test_shares_are_max_min_fair_by_weight(demands: dict[int, int], total: int, seed: int) -> None:
    weights = {key: 1 + (key * 7919 + seed) % 9 for key in demands}
    shares = fair_shares(demands, total, weights)
    assert shares.keys() == demands.keys()
    assert all(0 <= shares[key] <= demand for key, demand in demands.items())
    assert sum(shares.values()) == min(total, sum(demands.values()))
    most = max((shares[key] / weights[key] for key in demands), default=0)
    for key, demand in demands.items():
        assert shares[key] == demand or (shares[key] + 1) / weights[key] >= most - 1
