"""Goal: a million lines are validated in a small, constant memory."""

import subprocess
import sys

import pytest

RSS_GROWTH_MAX = 200 * 1024 * 1024
SECONDS_MAX = 60.0

PROGRAM = """
import resource, time
from collections.abc import Iterator
from datetime import UTC, datetime

from jobs.input_lines import input_lines
from jobs.validation import validate
from registry.models import ModelVersion

COUNT = 1_000_000
TEXT = "x" * 200


def blocks() -> Iterator[bytes]:
    for start in range(0, COUNT, 1000):
        yield b"".join(
            b'{"custom_id":"request-%d","method":"POST","url":"/v1/embeddings",'
            b'"body":{"model":"small","input":"%s"}}\\n' % (index, TEXT.encode())
            for index in range(start, start + 1000)
        )


small = ModelVersion("small", "1", "p", "simulated", ("/v1/embeddings",), datetime.now(UTC))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
verdict = validate(
    lambda: input_lines(blocks(), line_bytes_max=2**20),
    endpoint="/v1/embeddings",
    items_max=COUNT,
    line_bytes_max=2**20,
    find_model=lambda name: small,
)
assert (verdict.item_count, verdict.error_count) == (COUNT, 0), verdict
print(peak() - before)
"""


@pytest.mark.timeout(SECONDS_MAX)
def test_a_million_lines_take_a_small_constant_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        check=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert int(done.stdout) < RSS_GROWTH_MAX
