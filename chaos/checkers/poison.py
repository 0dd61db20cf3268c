"""P13: exactly the poison items and the invalid lines fail, each with its code."""

from collections.abc import Mapping
from typing import Any


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
