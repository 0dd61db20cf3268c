"""Goal: only windows within the limits are accepted."""

import pytest

from jobs.store.job_options import window_seconds

INVALID = ["", "24", "h", "29s", "31d", "0h", "-1h", "1w", "1.5h", " 24h", "24h\n", "٢٤h"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("24h", 86_400), ("30s", 30), ("90m", 5400), ("30d", 2_592_000), ("7d", 604_800)),
        *((text, None) for text in (*INVALID, "9" * 500 + "h")),
    ],
)
def test_windows_within_the_limits_are_parsed(text: str, seconds: int | None) -> None:
    assert window_seconds(text) == seconds
