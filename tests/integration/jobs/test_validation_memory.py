"""Goal: a million lines, or one of 200 MB, are validated in constant memory."""

import subprocess
import sys

import pytest

RSS_GROWTH_MAX = 200 * 1024 * 1024
SECONDS_MAX = 240.0

PROGRAM = """
import resource, time
from collections.abc import Iterator
from datetime import UTC, datetime

from jobs.input.line_reader import input_lines
from jobs.validation.file_validation import validate_file
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
result = validate_file(
    lambda: input_lines(blocks(), line_bytes_max=2**20),
    endpoint="/v1/embeddings",
    items_max=COUNT,
    line_bytes_max=2**20,
    find_model=lambda name: small,
)
assert (result.item_count, result.error_count) == (COUNT, 0), result
print(peak() - before)
"""


LONG_LINE = """
import resource
from collections.abc import Iterator
from datetime import UTC, datetime

from jobs.input.line_reader import input_lines
from jobs.validation.file_validation import validate_file
from registry.models import ModelVersion


def blocks() -> Iterator[bytes]:
    yield b'{"custom_id":"long","method":"POST","url":"/v1/embeddings",'
    yield b'"body":{"model":"small","input":"'
    for _ in range(3200):
        yield b"x" * 65536
    yield b'"}}\\n{"custom_id":"b","method":"POST","url":"/v1/embeddings",'
    yield b'"body":{"model":"small","input":"x"}}'


small = ModelVersion("small", "1", "p", "simulated", ("/v1/embeddings",), datetime.now(UTC))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
result = validate_file(
    lambda: input_lines(blocks(), line_bytes_max=2**20),
    endpoint="/v1/embeddings",
    items_max=10,
    line_bytes_max=2**20,
    find_model=lambda name: small,
)
(error,) = result.errors
assert (error.code, error.line) == ("line_too_long", 1), error
print(peak() - before)
"""


def growth_bytes(program: str) -> int:
    """Run a program that prints the growth of its peak memory."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    return int(done.stdout)


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_a_line_of_200_mb_is_rejected_in_constant_memory() -> None:
    assert growth_bytes(LONG_LINE) < 16 * 1024 * 1024


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_a_million_lines_are_validated_in_constant_memory() -> None:
    assert growth_bytes(PROGRAM) < RSS_GROWTH_MAX
