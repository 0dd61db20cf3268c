"""Goal: a comparison with another checkout runs only when both are named."""

from pathlib import Path

import pytest

from benchmarks.__main__ import COMPARISONS, NAMES, parse
from benchmarks.stacks.stack import PYTHON


def test_a_comparison_is_not_among_those_that_run_by_default() -> None:
    assert not {*COMPARISONS} & {*NAMES}


def test_a_comparison_needs_a_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["bulk_control_plane", "other_checkout"])
    assert "other_checkout needs --checkout" in capsys.readouterr().err


def test_a_checkout_needs_a_comparison_and_an_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for names, message in [
        ([], "only other_checkout compares"),
        (["other_checkout"], "make setup"),
    ]:
        with pytest.raises(SystemExit):
            parse([*names, "--checkout", str(tmp_path)])
        assert message in capsys.readouterr().err


def test_the_checkout_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "before" / PYTHON
    python.parent.mkdir(parents=True)
    python.touch()
    assert parse(["other_checkout", "--checkout", "before"]).checkout == tmp_path / "before"
