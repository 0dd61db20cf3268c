"""Goal: `millrace batch update` sets, removes and prints the schedule of a job."""

import json

import pytest

from cli.exits import ExitCode
from tests.unit.cli.scripted_server import Answer, batch, millrace, serving

STARTS_S = 1_782_943_200  # 2026-07-01T22:00:00 UTC
HOURS = "22:00-06:00 UTC"


@pytest.mark.parametrize(
    ("options", "body", "own", "printed"),
    [
        (
            ("--not-before", "2026-07-01T22:00:00", "--bulk-hours", HOURS),
            {"not_before": STARTS_S, "bulk_hours": HOURS},
            {"not_before": STARTS_S, "bulk_hours": HOURS},
            f" not before 2026-07-01T22:00:00+00:00 bulk hours {HOURS}",
        ),
        (
            ("--not-before", "none", "--bulk-hours", ""),
            {"not_before": 0, "bulk_hours": ""},
            {"not_before": None, "bulk_hours": None},
            "",
        ),
    ],
)
def test_a_schedule_is_set_removed_and_printed(
    options: tuple[str, ...], body: dict[str, object], own: dict[str, object], printed: str
) -> None:
    answer = batch(expires_at=0, millrace={"priority": 5, **own}).model_dump()
    with serving(Answer(answer)) as server:
        done = millrace(server.url, "batch", "update", "batch_1", *options)
    assert (done.exit_code, json.loads(server.bodies[0])) == (ExitCode.OK, body)
    assert done.stdout == f"expires 1970-01-01T00:00:00+00:00 priority 5{printed}\n"


@pytest.mark.parametrize("wrong", ["", "never", "2026-07-01", "2026-13-01T00:00:00"])
def test_another_start_is_refused_without_a_request(wrong: str) -> None:
    with serving(Answer({})) as server:
        done = millrace(server.url, "batch", "update", "batch_1", "--not-before", wrong)
    assert (done.exit_code, server.seen) == (ExitCode.USAGE, [])
