"""P2 and P13: jobs, items and invalid lines end as expected, each with its code.

A count of ended items would miss failures.
"""

from collections.abc import Mapping
from typing import Any, Final

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


def unexpected_failures(expected: Mapping[str, str], failed: Mapping[str, str]) -> dict[str, str]:
    """Return items whose outcome is not the expected one, with what happened.

    Both map a custom id to an error code; items in neither must succeed.
    """
    wrong = {
        item: f"{failed.get(item, 'succeeded')} instead of {code}"
        for item, code in expected.items()
        if failed.get(item) != code
    }
    return wrong | {
        item: f"{code} instead of success" for item, code in failed.items() if item not in expected
    }


def line_error_mismatches(expected: Mapping[int, str], job: Mapping[str, Any]) -> list[str]:
    """Return how a job differs from one that failed with exactly these errors by line."""
    wrong = []
    if job["status"] != "failed":
        wrong.append(f"the job ended {job['status']}")
    found = {error["line"]: error["code"] for error in (job.get("errors") or {}).get("data", [])}
    for line in sorted(expected.keys() | found.keys()):
        if expected.get(line) != found.get(line):
            wrong.append(f"line {line}: {found.get(line)} instead of {expected.get(line)}")
    return wrong
