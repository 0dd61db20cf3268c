"""Goal: a million lines, or one of 200 MB, are validated in constant memory."""

import subprocess
import sys

import pytest

RSS_GROWTH_MAX = 200 * 1024 * 1024
SECONDS_MAX = 240.0

PROGRAM = """
import resource
from collections.abc import Iterator
from datetime import UTC, datetime

from jobs.input.line_reader import input_lines
from jobs.validation.file_validation import validate_file
from registry.models import ModelVersion

COUNT = 1_000_000
HEAD = b'{"custom_id":"request-%d","method":"POST","url":"/v1/embeddings",'


def many_lines() -> Iterator[bytes]:
    line = HEAD + b'"body":{"model":"small","input":"' + b"x" * 200 + b'"}}\\n'
    for start in range(0, COUNT, 1000):
        yield b"".join(line % index for index in range(start, start + 1000))


def long_line() -> Iterator[bytes]:
    yield HEAD % 0 + b'"body":{"model":"small","input":"'
    for _ in range(3200):
        yield b"x" * 65536
    yield b'"}}\\n' + HEAD % 1 + b'"body":{"model":"small","input":"x"}}'


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


small = ModelVersion("small", "1", "p", "simulated", ("/v1/embeddings",), datetime.now(UTC))
before = peak()
result = validate_file(
    lambda: input_lines(BLOCKS(), line_bytes_max=2**20),
    endpoint="/v1/embeddings",
    items_max=COUNT,
    line_bytes_max=2**20,
    find_model=lambda name: small,
)
found = (result.item_count, [(error.code.value, error.line) for error in result.errors])
assert found == EXPECTED, found
print(peak() - before)
"""


def growth_bytes(blocks: str, expected: object) -> int:
    """Validate a file in a new process; return the growth of its peak memory."""
    program = PROGRAM.replace("BLOCKS", blocks).replace("EXPECTED", repr(expected))
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
    assert growth_bytes("long_line", (2, [("line_too_long", 1)])) < 16 * 1024 * 1024


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_a_million_lines_are_validated_in_constant_memory() -> None:
    assert growth_bytes("many_lines", (1_000_000, [])) < RSS_GROWTH_MAX
