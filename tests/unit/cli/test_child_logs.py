"""Goal: a child is ready when its log of this run says so."""

from pathlib import Path

from cli.stack.processes.child_logs import ReadinessLog

READY = b'{"time":"t","level":"info","role":"intake","logger":"x","event":"ready"}\n'


def test_lines_of_an_earlier_child_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(READY)
    words = ReadinessLog(tmp_path, ["intake"])
    assert not words.is_ready("intake")

    with log.open("ab") as file:
        file.write(b"a library's line\n" + READY)

    assert words.is_ready("intake")
    assert words.is_ready("intake")


def test_only_complete_lines_count(tmp_path: Path) -> None:
    words = ReadinessLog(tmp_path, ["intake"])
    assert not words.is_ready("intake"), "there is no log yet"
    log = tmp_path / "intake.log"
    for size in range(len(READY)):
        log.write_bytes(READY[:size])
        assert not words.is_ready("intake")

    log.write_bytes(READY)

    assert words.is_ready("intake")


def test_a_rotated_log_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(b"x" * 1000)
    words = ReadinessLog(tmp_path, ["intake"])

    log.write_bytes(READY)

    assert words.is_ready("intake")
