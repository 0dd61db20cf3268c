"""A stack that serves a signed model with two adapters by real vLLM."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

from cli.demo.demo_models import ensure_tiny_llama
from cli.exits import ExitCode
from cli.main import app
from tests.support.lora_adapters import write_adapter
from tests.support.stacks import Stack, role_of, running_stack
from tests.support.until import until_found

REPLICA_S_MAX = 240.0
"""Start or stop of a replica with vLLM on a busy machine."""

BASE, ADAPTERS, OTHER = "base", ("first", "second"), "other"
CHAT = "/v1/chat/completions"
TOKENS = 8
OPTIONS = (
    *("--engine", "vllm", "--engine-option", "adapters_max=2"),
    *("--engine-option", "vllm_max_num_seqs=16"),
    *("--engine-option", "vllm_tool_call_parser=hermes"),
    *("--engine-option", "vllm_dtype=float32"),  # so that a batch does not change a greedy token
)


@dataclass(frozen=True, slots=True)
class Registry:
    """A stack that serves a model with two adapters, and knows another version without replicas."""

    stack: Stack
    versions: Mapping[str, str]  # by name
    private: str  # an adapter of another tenant
    key_of_owner: str

    def models(self, *arguments: str) -> Result:
        return millrace("models", *arguments, "--data", str(self.stack.data))

    def answer(self, model: str, prompt: str) -> httpx.Response:
        return self.stack.request("POST", CHAT, json=body_of(model, prompt))

    def text(self, model: str, prompt: str) -> str:
        answer = self.answer(model, prompt)
        assert answer.status_code == 200, answer.text
        return text_of(answer.json())


@contextmanager
def running_registry(folder: Path) -> Iterator[Registry]:
    """The replica is killed once while it loads; the stack starts nevertheless."""
    data, model = folder / "data", ensure_tiny_llama(folder / "model")
    killed = threading.Thread(target=kill_while_loading, args=(data,), daemon=True)
    killed.start()
    with running_stack(data, *OPTIONS, "--model", f"{BASE}={model}", model=BASE) as stack:
        assert not killed.is_alive()
        yield publish(stack, folder, model)


def publish(stack: Stack, folder: Path, model: Path) -> Registry:
    versions = {BASE: next(one.id for one in stack.client.models.list() if one.id == BASE)}
    versions[BASE] = shown(stack, BASE)["version"]
    for seed, name in enumerate(ADAPTERS):
        versions[name] = pushed(stack, write_adapter(folder / name, seed), name, "--base", BASE)
    versions[OTHER] = pushed(stack, with_other_weights(model, folder / OTHER), OTHER)
    succeed("tenants", "create", "owner", "--data", str(stack.data))
    key = succeed("keys", "create", "--tenant", "owner", "--data", str(stack.data)).split()[-1]
    adapter = write_adapter(folder / "private", 7)
    pushed(stack, adapter, "private", "--base", BASE, "--tenant", "owner")
    return Registry(stack, versions, "private", key)


def kill_while_loading(data: Path) -> None:
    """Kill the replica with SIGKILL once it has staged its model, before it can have loaded it."""
    until_found(lambda: events_of(data, "model_staged"), timeout_s=120)
    for process in psutil.Process().children(recursive=True):
        if role_of(process) == "gpu-consumer":
            process.kill()


def events_of(data: Path, event: str) -> list[dict[str, Any]]:
    """Return what replicas have logged under a name."""
    lines = [line for log in data.glob("logs/gpu-*.log") for line in log.read_text().splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [one for one in found if one["event"] == event]


def millrace(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def succeed(*arguments: str) -> str:
    done = millrace(*arguments)
    assert done.exit_code == ExitCode.OK, done.stderr
    return done.stdout


def pushed(stack: Stack, folder: Path, name: str, *options: str) -> str:
    """Publish a folder and return its version."""
    key = ("--sign", str(stack.data / "model-signing-key"), "--data", str(stack.data))
    printed = succeed("models", "push", str(folder), "--name", name, *options, *key)
    shown_name, version = printed.split()
    assert shown_name == name
    return version


def with_other_weights(model: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = np.roll(weights["lm_head.weight"], 1, axis=0)
    save_file(weights, folder / "model.safetensors")
    return folder


def shown(stack: Stack, name: str, key: str | None = None) -> dict[str, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    answer = stack.request("GET", f"/v1/models/{name}", headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["millrace"])


def body_of(model: str, prompt: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "max_tokens": TOKENS, "temperature": 0}


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


@contextmanager
def running_replica(
    registry: Registry, name: str, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a replica of a model that the stack's command does not serve; end it.

    `folder` gets its log, `replica.log`, and its cache, `weights`.
    """
    stack = registry.stack
    found = json.loads(registry.models("show", name, "--output", "json").stdout)
    succeed("topics", "create", "--data", str(stack.data))
    env = {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": stack.state.kafka_bootstrap_servers,
        **stack.state.kafka_credentials,
        "MILLRACE_OBJECTS_ROOT": str(stack.data / "objects"),
        "MILLRACE_GPU_POOL": found["pool"],
        "MILLRACE_GPU_METRICS_PORT": "0",
        "MILLRACE_ENGINE_KIND": "vllm",
        "MILLRACE_ENGINE_MODEL_NAME": name,
        "MILLRACE_ENGINE_MODEL_VERSION": found["version"],
        "MILLRACE_ENGINE_TRUSTED_KEYS": str(stack.data / "trusted-model-keys.pem"),
        "MILLRACE_ENGINE_WEIGHT_CACHE": str(folder / "weights"),
    }
    with (folder / "replica.log").open("wb") as output:
        replica = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpu_consumers"],
            env={**os.environ, **env},
            stdout=output,
            stderr=output,
        )
    try:
        yield replica
    finally:
        replica.terminate()
        try:
            replica.wait(REPLICA_S_MAX)
        finally:
            replica.kill()
            replica.wait()
