"""Goal: a work folder is created in the requested parent and is kept only on request."""

from pathlib import Path

import pytest

from benchmarks.work_folders import work_folder


@pytest.mark.parametrize("keep", [True, False])
def test_a_missing_parent_is_created(tmp_path: Path, keep: bool) -> None:
    notes: list[str] = []
    parent = tmp_path / "not" / "there"
    with work_folder("quick", parent=parent, keep=keep, note=notes.append) as work:
        assert work.parent == parent
        assert work.stat().st_mode & 0o777 == 0o755
        (work / "data").mkdir()
    assert work.exists() == keep
    assert notes == ([f"kept {work}"] if keep else [])


def test_the_folder_of_a_failed_run_is_removed(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="no space"),
        work_folder("failing", parent=tmp_path, keep=False, note=lambda _: None),
    ):
        raise OSError("no space")
    assert not list(tmp_path.iterdir())
