"""Goal: a run's folder is made wherever it was asked for, and stays only when asked to."""

from pathlib import Path

import pytest

from benchmarks.work_folders import work_folder


@pytest.mark.parametrize("keep", [True, False])
def test_a_folder_below_one_that_is_not_there_yet(tmp_path: Path, keep: bool) -> None:
    said: list[str] = []
    parent = tmp_path / "not" / "there"
    with work_folder("quick", parent=parent, keep=keep, note=said.append) as work:
        assert work.parent == parent
        assert work.stat().st_mode & 0o777 == 0o755
        (work / "data").mkdir()
    assert work.exists() == keep
    assert said == ([f"kept {work}"] if keep else [])


def test_nothing_stays_of_a_run_that_fails(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="no space"),
        work_folder("failing", parent=tmp_path, keep=False, note=lambda _: None),
    ):
        raise OSError("no space")
    assert not list(tmp_path.iterdir())
