"""Goal: larger files use fewer of the validation threads; of four, two are left for small files."""

import pytest

from jobs.validation.validator import free_slots


@pytest.mark.parametrize(
    ("threads", "running", "free"),
    [
        (4, (0, 0, 0), (4, 2, 1)),
        (4, (0, 0, 1), (3, 1, 0)),
        (4, (0, 1, 1), (2, 0, 0)),
        (4, (0, 2, 0), (2, 0, 0)),
        (4, (4, 0, 0), (0, 0, 0)),
        (4, (2, 0, 0), (2, 2, 1)),
        (8, (0, 0, 0), (8, 4, 2)),
        (2, (0, 0, 0), (2, 2, 1)),
        (2, (0, 0, 1), (1, 1, 0)),
        (1, (0, 0, 0), (1, 1, 1)),
        (1, (0, 0, 1), (0, 0, 0)),
    ],
)
def test_larger_files_use_fewer_threads(
    threads: int, running: tuple[int, ...], free: tuple[int, ...]
) -> None:
    assert tuple(free_slots(threads, running, size) for size in range(3)) == free
