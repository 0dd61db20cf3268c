"""Goal: a device's out-of-memory error is recognised among other exceptions."""

import pytest

from gpu_consumers.engines.engine_failures import is_out_of_memory


class OutOfMemoryError(RuntimeError):
    """As a device's framework names its own."""


def caused(cause: Exception) -> Exception:
    try:
        raise RuntimeError from cause
    except RuntimeError as failure:
        return failure


@pytest.mark.parametrize(
    ("failure", "is_it"),
    [
        (MemoryError(), True),
        (OutOfMemoryError(), True),
        (caused(OutOfMemoryError()), True),
        (ValueError("out of memory"), False),
        (caused(ValueError()), False),
    ],
)
def test_out_of_memory_exceptions_are_recognised(failure: Exception, is_it: bool) -> None:
    assert is_out_of_memory(failure) is is_it


def test_cyclic_causes_terminate() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)
