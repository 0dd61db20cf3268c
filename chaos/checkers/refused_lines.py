"""P13: a file with bad lines is refused by itself, and each of them is named."""

from collections.abc import Mapping
from typing import Any


def line_error_mismatches(wanted: Mapping[int, str], job: Mapping[str, Any]) -> list[str]:
    """Return how a job differs from one that failed by exactly these lines, with these codes."""
    wrong = []
    if job["status"] != "failed":
        wrong.append(f"the job ended {job['status']}")
    told = {error["line"]: error["code"] for error in (job.get("errors") or {}).get("data", [])}
    for line in sorted(wanted.keys() | told.keys()):
        if wanted.get(line) != told.get(line):
            wrong.append(f"line {line}: {told.get(line)} instead of {wanted.get(line)}")
    return wrong
