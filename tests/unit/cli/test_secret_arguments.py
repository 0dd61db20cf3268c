"""Goal: a secret on the command line of `up` is refused, and never shown again."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.exits import ExitCode
from cli.main import app
from cli.stack.secret_arguments import refuse_secret
from core.errors import SettingsError
from gpu_consumers.engines.settings import EngineSettings

KEY = "sk-" + "a1B2" * 6


@pytest.mark.parametrize(
    "text",
    [
        *(f"{name}=x" for name in ("api_key", "token", "password", "hf_token", "HF_TOKEN")),
        *(f"{name}=x" for name in ("upstream_api_key", "cache_salt_key", "aws.secret", "apikey")),
        *(KEY, f"model={KEY}", f'x={{"key": "{KEY}"}}', "m=hf_" + "a" * 20, "AKIA" + "A1" * 8),
        "x=" + ".".join(["eyJhbGciOiJI", "eyJzdWIiOiIx", "c2ln"]),
        "https://user:canary@host/v1",
        "https://host/v1?api-key=canary",
    ],
)
def test_secret_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(SettingsError, match="command lines") as refusal:
        refuse_secret("--engine-option", text)
    value = text.rpartition("=")[2]
    assert value == "x" or value not in str(refusal.value)
    assert "canary" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        *("org/model", "my-model=/models/sk", "https://host:8000/v1", "vllm_max_num_seqs=8"),
        *("vllm_chat_template=token.jinja", "simulated_token_ms=3", "task-sk-model=/m", "asks-x=y"),
        "https://me@host/v1",
    ],
)
def test_other_texts_are_accepted(text: str) -> None:
    refuse_secret("--model", text)


def test_no_setting_that_is_no_secret_is_refused() -> None:
    secret = {"upstream_api_key", "cache_salt_key"}
    for name in EngineSettings.model_fields.keys() - secret:
        refuse_secret("--engine-option", f"{name}=1")
    for name in secret:
        with pytest.raises(SettingsError):
            refuse_secret("--engine-option", f"{name}=1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--engine-option", f"upstream_api_key={KEY}"],
        ["--engine", "openai_http", "--model", "m", "--upstream", f"http://h/v1?key={KEY}"],
        ["--model", KEY],
    ],
)
def test_up_refuses_before_it_makes_anything(arguments: list[str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    done = CliRunner().invoke(app, ["up", "--data", str(data), *arguments])
    assert done.exit_code == ExitCode.USAGE, done.output
    assert "command lines" in done.stderr
    assert KEY not in done.output
    assert not data.exists()
