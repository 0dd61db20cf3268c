"""Goal: a child is ready when it says so in this run, however its log is written."""

from pathlib import Path

from cli.stack.processes.child_logs import ReadinessLines

READY = b'{"time":"t","level":"info","role":"intake","logger":"x","event":"ready"}\n'


def test_what_an_earlier_child_said_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(READY)
    words = ReadinessLines(tmp_path, ["intake"])
    assert not words.is_ready("intake")

    with log.open("ab") as file:
        file.write(b"a library's line\n" + READY)

    assert words.is_ready("intake")
    assert words.is_ready("intake")


def test_a_line_counts_when_it_is_whole(tmp_path: Path) -> None:
    words = ReadinessLines(tmp_path, ["intake"])
    assert not words.is_ready("intake"), "there is no log yet"
    log = tmp_path / "intake.log"
    for size in range(len(READY)):
        log.write_bytes(READY[:size])
        assert not words.is_ready("intake")

    log.write_bytes(READY)

    assert words.is_ready("intake")


def test_a_log_that_was_moved_aside_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(b"x" * 1000)
    words = ReadinessLines(tmp_path, ["intake"])

    log.write_bytes(READY)

    assert words.is_ready("intake")
