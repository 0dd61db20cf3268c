"""Goal: large files never occupy every validation thread."""

import pytest

from jobs.validation.validator import free_slots


@pytest.mark.parametrize(
    ("threads", "small", "large", "for_large", "for_small"),
    [
        (2, 0, 0, 1, 2),
        (2, 0, 1, 0, 1),
        (2, 1, 0, 1, 1),
        (2, 2, 0, 0, 0),
        (1, 0, 0, 1, 1),
        (1, 0, 1, 0, 0),
        (4, 0, 1, 1, 3),
        (4, 0, 2, 0, 2),
        (4, 2, 0, 2, 2),
    ],
)
def test_half_of_the_threads_are_reserved_for_small_files(
    threads: int, small: int, large: int, for_large: int, for_small: int
) -> None:
    def free(is_small: bool) -> int:
        return free_slots(threads, small=small, large=large, for_small=is_small)

    assert (free(False), free(True)) == (for_large, for_small)
