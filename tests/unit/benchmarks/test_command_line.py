"""Goal: a comparison with another checkout runs only when both are named."""

from pathlib import Path

import pytest

from benchmarks.__main__ import COMPARISONS, NAMES, parse


def test_a_comparison_is_not_among_those_that_run_by_default() -> None:
    assert not {*COMPARISONS} & {*NAMES}


def test_a_comparison_needs_a_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["bulk_control_plane", "other_checkout"])
    assert "other_checkout needs --checkout" in capsys.readouterr().err


def test_the_checkout_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(["other_checkout", "--checkout", "before"]).checkout == tmp_path / "before"
