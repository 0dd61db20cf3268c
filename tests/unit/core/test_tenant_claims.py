"""Goal: effective weights give each tenant with work what it is due of a pool."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tenant_claims import (
    RESERVED_TOTAL_MAX,
    TRICKLE_SHARE,
    TenantClaim,
    effective_weights,
    reserved_share,
)

CLAIMS = st.dictionaries(
    st.integers(0, 99),
    st.builds(
        TenantClaim,
        st.integers(1, 1000),
        st.sampled_from([0.0, 0.0, 0.001, 0.1, 0.3, RESERVED_TOTAL_MAX]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


def parts(claims: dict[int, TenantClaim]) -> dict[int, float]:
    weights = effective_weights(claims)
    total = sum(weights.values())
    return {key: weight / total for key, weight in weights.items()}


@given(CLAIMS)
def test_each_tenant_gets_its_reserved_share_and_lower_classes_their_trickle(
    claims: dict[int, TenantClaim],
) -> None:
    found = parts(claims)
    assert found.keys() == claims.keys()
    scale = min(1.0, RESERVED_TOTAL_MAX / (sum(one.reserved for one in claims.values()) or 1))
    top = min(claim.tenant_class for claim in claims.values())
    for key, claim in claims.items():
        assert found[key] >= claim.reserved * scale * (1 - 1e-6)
        if claim.tenant_class != top:
            peers = [one.weight for one in claims.values() if one[2] == claim[2]]
            assert found[key] >= TRICKLE_SHARE * claim.weight / sum(peers) * (1 - 1e-6)


@given(CLAIMS)
def test_what_is_not_reserved_goes_to_the_highest_class_by_weight(
    claims: dict[int, TenantClaim],
) -> None:
    weights = effective_weights(claims)
    top = min(claim.tenant_class for claim in claims.values())
    for key, claim in claims.items():
        if claim.tenant_class == top and not claim.reserved:
            assert weights[key] == claim.weight


def test_reserved_shares_and_trickles_leave_a_part_to_others() -> None:
    claims = {
        1: TenantClaim(reserved=RESERVED_TOTAL_MAX, tenant_class=0),
        2: TenantClaim(tenant_class=0),
        3: TenantClaim(tenant_class=1),
        4: TenantClaim(tenant_class=2),
    }
    assert parts(claims)[2] == pytest.approx(1 - RESERVED_TOTAL_MAX - 2 * TRICKLE_SHARE)


def test_a_reserved_share_below_the_part_by_weight_changes_nothing() -> None:
    claims = {1: TenantClaim(3, 0.25), 2: TenantClaim(1)}
    assert effective_weights(claims) == {1: 3.0, 2: 1.0}


def test_a_reserved_share_is_met_against_many_others() -> None:
    claims = {0: TenantClaim(1, 0.25)} | {n: TenantClaim(1) for n in range(1, 31)}
    assert parts(claims)[0] == pytest.approx(0.25)
    assert parts(claims)[7] == pytest.approx(0.75 / 30)


def test_a_lower_class_without_a_higher_one_has_the_whole_pool() -> None:
    assert parts({1: TenantClaim(1, 0.0, 2), 2: TenantClaim(3, 0.0, 2)}) == {1: 0.25, 2: 0.75}


def test_a_share_of_one_pool_replaces_the_share_of_every_pool() -> None:
    shares = {"*": 0.1, "large": 0.3, "none": 0.0}
    assert [reserved_share(shares, pool) for pool in ("large", "none", "x")] == [0.3, 0.0, 0.1]
    assert reserved_share({}, "x") == 0
