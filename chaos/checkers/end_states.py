"""P2: jobs and items end as expected; a count of ended items would miss failures."""

from collections.abc import Mapping
from typing import Final

EndStates = Mapping[str, frozenset[str]]
"""Maps each allowed end state of a job to the allowed error codes of its items."""

ALL_SUCCEED: Final[EndStates] = {"completed": frozenset()}
"""Of a job that nothing stops and that has no poison items."""

CANCELLED: Final[EndStates] = {"cancelled": frozenset({"batch_cancelled"})}
MAY_BE_CANCELLED: Final[EndStates] = {**ALL_SUCCEED, **CANCELLED}
"""The cancellation may have come too late, and then it had no effect."""

MAY_EXPIRE: Final[EndStates] = {**ALL_SUCCEED, "expired": frozenset({"batch_expired"})}


def unexpected_ends(status: str, codes: Mapping[str, str], ends: EndStates) -> list[str]:
    """Return the job and the failed items whose end is not allowed.

    `codes` maps the custom id of each failed item to its error code.
    """
    wrong = [] if status in ends else [f"the job is {status}"]
    allowed = ends.get(status, frozenset())
    return wrong + [f"{item}: {code}" for item, code in codes.items() if code not in allowed]
