"""P2: jobs and items end as they have to; whoever only counts ends takes failures for work."""

from collections.abc import Mapping
from typing import Final

EndStates = Mapping[str, frozenset[str]]
"""Each status that a job may end with, to the codes that its items may then fail with."""

ALL_SUCCEED: Final[EndStates] = {"completed": frozenset()}
"""Of a job that nobody stops and that holds no poison: every item succeeds."""

CANCELLED: Final[EndStates] = {"cancelled": frozenset({"batch_cancelled"})}
MAY_BE_CANCELLED: Final[EndStates] = {**ALL_SUCCEED, **CANCELLED}
"""The cancel may have come too late, and then it changed nothing."""

MAY_EXPIRE: Final[EndStates] = {**ALL_SUCCEED, "expired": frozenset({"batch_expired"})}


def unexpected_ends(status: str, codes: Mapping[str, str], ends: EndStates) -> list[str]:
    """Return what ended otherwise than it had to: the job itself, and items that failed.

    `codes` maps the custom id of an item that did not succeed to its code.
    """
    wrong = [] if status in ends else [f"the job is {status}"]
    allowed = ends.get(status, frozenset())
    return wrong + [f"{item}: {code}" for item, code in codes.items() if code not in allowed]
