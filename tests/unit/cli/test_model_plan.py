"""Goal: a memory plan says whether a folder fits a device, and is an exit code for scripts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from tests.support.weight_files import entry, header_bytes, llama_config, write_model

WEIGHTS_BYTES = 4 * 2**20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    name, shape = "model.layers.0.self_attn.q_proj.weight", [WEIGHTS_BYTES // 2 // 4096, 4096]
    tensors = {name: entry("BF16", shape, 0, WEIGHTS_BYTES)}
    return write_model(tmp_path / "model", llama_config(), header_bytes(tensors, WEIGHTS_BYTES))


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", "plan", *arguments])


def test_a_folder_is_planned_for_a_device(model: Path) -> None:
    done = plan(str(model), "--device-gib", "24", "--output", "json")
    assert done.exit_code == ExitCode.OK, done.stderr
    found = json.loads(done.stdout)
    assert (found["device_bytes"], found["stored_bytes"]) == (24 * 2**30, WEIGHTS_BYTES)
    assert found["fits"] is True
    assert "tokens in the KV cache" in plan(str(model)).stdout


def test_a_model_that_does_not_fit_fails(model: Path) -> None:
    done = plan(str(model), "--device-gib", "1")
    assert done.exit_code == ExitCode.FAILED
    assert done.stdout.splitlines()[-1].split() == ["fits", "no"]


def test_options_change_the_plan(model: Path, tmp_path: Path) -> None:
    options = tmp_path / "options.toml"
    options.write_text("max_model_len = 1024\nadapters_max = 4\nadapter_rank_max = 16\n")
    found = json.loads(plan(str(model), "--options", str(options), "--output", "json").stdout)
    assert found["max_model_len"] == 1024
    assert found["reserve"]["adapter_bytes"] > 0


def test_an_unknown_option_is_refused(model: Path, tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    options.write_text('{"max_model_length": 1024}')
    done = plan(str(model), "--options", str(options))
    assert done.exit_code != ExitCode.OK
    assert "max_model_length" in done.stderr
