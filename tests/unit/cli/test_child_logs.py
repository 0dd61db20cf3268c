"""Goal: readiness is detected from the lines of the current run."""

from pathlib import Path

from cli.stack.processes.child import ReadinessLines

READY = b'{"time":"t","level":"info","role":"intake","logger":"x","event":"ready"}\n'


def test_event_of_an_earlier_child_is_ignored(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(READY)
    words = ReadinessLines(tmp_path, ["intake"])
    assert not words.is_ready("intake")

    with log.open("ab") as file:
        file.write(b"a library's line\n" + READY)

    assert words.is_ready("intake")
    assert words.is_ready("intake")


def test_incomplete_line_is_ignored(tmp_path: Path) -> None:
    words = ReadinessLines(tmp_path, ["intake"])
    assert not words.is_ready("intake"), "there is no log yet"
    log = tmp_path / "intake.log"
    for size in range(len(READY)):
        log.write_bytes(READY[:size])
        assert not words.is_ready("intake")

    log.write_bytes(READY)

    assert words.is_ready("intake")


def test_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(b"x" * 1000)
    words = ReadinessLines(tmp_path, ["intake"])

    log.write_bytes(READY)

    assert words.is_ready("intake")
