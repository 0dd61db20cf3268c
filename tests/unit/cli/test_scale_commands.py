"""Goal: `millrace scale check` shows what each pool gets, or one line for each problem."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from cli.admin.scale_commands import OTHER_POOLS
from cli.exits import ExitCode
from cli.main import app

EXAMPLE = Path(__file__).parents[3] / "deploy/scaling.example.toml"


def check(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["scale", "check", *arguments])


def test_a_valid_file_is_shown_with_the_defaults_of_each_pool() -> None:
    done = check(str(EXAMPLE))

    assert done.exit_code == ExitCode.OK, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.startswith("POOL ")
    names = ["chat-70b", "chat-8b", "embed-*", OTHER_POOLS, "ROLE", "results-writer"]
    assert [row.startswith(f"{name} ") for name, row in zip(names, rows, strict=True)] == [True] * 6
    assert "4-12 Mon-Fri 08:00-18:00 Europe/Berlin" in rows[1]
    assert "50%, no fallback" in rows[0]


def test_programs_get_every_field() -> None:
    found = json.loads(check(str(EXAMPLE), "-o", "json").stdout)

    assert found["pools"]["embed-*"]["replicas_max"] == 4
    assert found["defaults"]["mode"] == "observe"
    assert found["gpu_types"]["l4"]["throughput"][0] == [1, 30.0]


def test_each_problem_is_one_line_and_the_exit_code_is_2(tmp_path: Path) -> None:
    path = tmp_path / "scaling.toml"
    path.write_text("[pools.a]\nreplica_min = 1\nidle_s = 'x'\n")

    done = check(str(path))

    assert (done.exit_code, done.stdout) == (ExitCode.USAGE, "")
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [str(path)] * 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    done = check(str(tmp_path / "none.toml"))

    assert done.exit_code == ExitCode.USAGE
    assert done.stderr.endswith("none.toml: The file cannot be read: No such file or directory.\n")
