"""Goal: shares are checked against those of all tenants, in one pass, if any are reserved."""

from types import SimpleNamespace
from typing import Any

import pytest

from core.ids import new_uuid
from core.tenant_claims import RESERVED_TOTAL_MAX
from tenancy import reserved_shares
from tenancy.reserved_shares import ReservedSharesError, check_reserved_shares


class Database:
    """A connection to a database with the shares of other tenants, by name."""

    def __init__(self, **others: dict[str, float]) -> None:
        self.others, self.statements = others, 0

    def execute(self, _: object) -> list[Any]:
        self.statements += 1
        rows = self.others.items()
        return [SimpleNamespace(name=name, reserved_shares=shares) for name, shares in rows]

    def check(self, shares: dict[str, float]) -> None:
        connection: Any = self
        check_reserved_shares(connection, new_uuid(), shares)


@pytest.mark.parametrize("shares", [{}, {"p": 0.0, "*": 0.0}])
def test_a_tenant_that_reserves_nothing_waits_for_no_lock(shares: dict[str, float]) -> None:
    database = Database(full={"*": RESERVED_TOTAL_MAX})
    database.check(shares)
    assert database.statements == 0


@pytest.mark.parametrize(
    ("shares", "pool"),
    [
        ({"p": 0.36}, "p"),  # one has half of it
        ({"p": 0.35}, None),
        ({"q": 0.66}, "q"),  # one has a tenth, other a tenth
        ({"q": 0.65}, None),
        ({"r": 0.46}, "r"),  # one has a tenth of every other pool, other 0.3 of this one
        ({"r": 0.45}, None),
        ({"*": 0.36}, "p"),
        ({"*": 0.76}, "every other pool"),
        ({"p": 0.0, "*": 0.46}, "r"),
        ({"p": 0.0, "q": 0.0, "r": 0.0, "*": 0.75}, None),
    ],
)
def test_the_sum_over_all_tenants_is_bounded_in_each_pool(
    shares: dict[str, float], pool: str | None
) -> None:
    database = Database(one={"p": 0.5, "*": 0.1}, other={"q": 0.1, "r": 0.3})
    if pool is None:
        database.check(shares)
        return
    with pytest.raises(ReservedSharesError, match=rf"of (pool )?{pool} is too much"):
        database.check(shares)


def test_one_pass_over_the_shares_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups: list[str] = []

    def counted(shares: dict[str, float], pool: str) -> float:
        look_ups.append(pool)
        return shares.get(pool, shares.get("*", 0.0))

    monkeypatch.setattr(reserved_shares, "reserved_share", counted)
    others = {f"t{n}": {f"p{n}-{k}": 0.001 for k in range(20)} for n in range(50)}
    Database(**others).check({"*": 0.5})
    assert len(look_ups) <= 2 * 20 * 50  # not pools times tenants
