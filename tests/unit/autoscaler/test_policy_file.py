"""Goal: a changed file is read once and whole; a bad one keeps the policies and says why once."""

import os
from pathlib import Path

import pytest

from autoscaler.policies.policy_file import FileStamp, PolicyFile, Reload
from autoscaler.policies.policy_reader import InvalidPoliciesError


class ScriptedFile:
    """A file in memory whose reads can fail, or change it."""

    def __init__(self, text: str) -> None:
        self.stamp = FileStamp(1, 1, 0, 0)
        self.text = text
        self.error: OSError | None = None
        self.during_read: str | None = None
        self.reads = 0

    def write(self, text: str) -> None:
        self.text = text
        self.stamp = FileStamp(1, 1, len(text), self.stamp.mtime_ns + 1)

    def read_stamp(self, _path: Path) -> FileStamp:
        if self.error is not None:
            raise self.error
        return self.stamp

    def read(self, _path: Path, bytes_max: int) -> bytes:
        self.reads += 1
        data = self.text.encode()[:bytes_max]
        if self.during_read is not None:
            self.write(self.during_read)
            self.during_read = None
        return data

    def open(self) -> PolicyFile:
        return PolicyFile(Path("scaling.toml"), read_stamp=self.read_stamp, read=self.read)


def text(replicas_max: int) -> str:
    return f"[defaults]\nreplicas_max = {replicas_max}\n"


def test_a_file_is_read_again_only_when_its_stamp_changes() -> None:
    source = ScriptedFile(text(3))
    file = source.open()
    before = file.policies

    assert file.refresh() is None
    assert source.reads == 1
    source.write(text(4))
    assert file.refresh() == Reload()
    assert file.refresh() is None
    assert file.policies.defaults.replicas_max == 4
    assert before.defaults.replicas_max == 3  # whoever uses the old ones goes on with them


def test_a_bad_file_keeps_the_policies_and_says_why_once() -> None:
    source = ScriptedFile(text(3))
    file = source.open()

    source.write(text(-1))
    refused = file.refresh()
    assert refused is not None
    assert not refused.is_accepted
    assert refused.problems[0].startswith("scaling.toml: [defaults] replicas_max: ")
    assert file.refresh() is None
    assert file.problems == refused.problems
    source.write(text(-1))  # the same problem after another write
    assert file.refresh() is None
    assert file.policies.defaults.replicas_max == 3

    source.write(text(5))
    assert file.refresh() == Reload()
    assert (file.problems, file.policies.defaults.replicas_max) == ((), 5)


def test_an_empty_file_resets_nothing() -> None:
    source = ScriptedFile(text(3))
    file = source.open()

    source.write("")
    refused = file.refresh()

    assert refused is not None
    assert refused.problems == ("scaling.toml: The file has no table.",)
    assert file.policies.defaults.replicas_max == 3


def test_a_file_that_vanishes_is_read_when_it_is_back() -> None:
    source = ScriptedFile(text(3))
    file = source.open()

    source.error = FileNotFoundError(2, "No such file or directory")
    problem = "scaling.toml: The file cannot be read: No such file or directory."
    assert file.refresh() == Reload((problem,))
    assert file.refresh() is None
    assert file.policies.defaults.replicas_max == 3
    source.error = None  # with the stamp that it had
    assert file.refresh() == Reload()
    assert file.problems == ()


def test_a_file_that_changes_while_it_is_read_is_read_again() -> None:
    source = ScriptedFile(text(3))
    file = source.open()

    source.write("[defaults]\n")  # half of what is written
    source.during_read = text(6)
    assert file.refresh() is None
    assert file.policies.defaults.replicas_max == 3
    assert file.refresh() == Reload()
    assert file.policies.defaults.replicas_max == 6


def test_a_bad_file_at_the_start_is_refused() -> None:
    with pytest.raises(InvalidPoliciesError, match="replicas_max"):
        ScriptedFile(text(-1)).open()
    changing = ScriptedFile(text(3))
    changing.during_read = text(4)
    with pytest.raises(InvalidPoliciesError, match="changes while it is read"):
        changing.open()


def test_a_pipe_or_a_folder_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidPoliciesError, match="not a regular file"):
            PolicyFile(path)


def test_a_file_on_disk_is_followed_through_a_replaced_link(tmp_path: Path) -> None:
    """A mounted ConfigMap is replaced by pointing a link at another folder."""
    for number in (3, 4):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "scaling.toml").write_text(text(number))
    link = tmp_path / "data"
    link.symlink_to("v3")
    file = PolicyFile(link / "scaling.toml")
    assert file.refresh() is None

    (tmp_path / "next").symlink_to("v4")
    (tmp_path / "next").replace(link)

    assert file.refresh() == Reload()
    assert file.policies.defaults.replicas_max == 4
