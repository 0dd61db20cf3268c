"""Goal: signed models and adapters, from `millrace models push` to lines that say what ran them."""

import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import NotFoundError, OpenAI

from cli.exits import ExitCode
from registry.manifests.model_objects import file_key
from tests.e2e.registry_stack import (
    ADAPTERS,
    BASE,
    CHAT,
    OTHER,
    TOKENS,
    Registry,
    body_of,
    events_of,
    running_replica,
    shown,
    succeed,
    text_of,
)
from tests.support.job_checks import create as create_job
from tests.support.job_checks import ended, lines_of, upload, watch
from tests.support.until import STEP_S_MAX, until

pytestmark = pytest.mark.timeout(400)

NAMES = (BASE, *ADAPTERS)
PROMPTS = tuple(f"How do I read file number {number}?" for number in range(4))
LINES_PER_NAME = 24
REPLICA_S_MAX = 60.0


def file_of(requests: Sequence[tuple[str, str]]) -> bytes:
    """Return an input file of models with prompts."""
    lines = (
        {"custom_id": f"{n}", "method": "POST", "url": CHAT, "body": body_of(model, prompt)}
        for n, (model, prompt) in enumerate(requests)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_a_replica_that_was_killed_while_it_loaded_serves(registry: Registry) -> None:
    staged = events_of(registry.stack.data, "model_staged")
    assert [one["version"] for one in staged] == [registry.versions[BASE]] * 2


def test_a_mixed_file_runs_each_line_with_its_adapter(registry: Registry) -> None:
    """Also: the base model answers beside adapters as it does alone."""
    client = registry.stack.client
    alone = {(name, one): registry.text(name, one) for name in NAMES for one in PROMPTS}
    for prompt in PROMPTS:
        assert len({alone[name, prompt] for name in NAMES}) == len(NAMES)
    requests = [
        (name, PROMPTS[number % len(PROMPTS)]) for number in range(LINES_PER_NAME) for name in NAMES
    ]

    job = create_job(client, upload(client, file_of(requests)))
    job = watch(client, job.id, ended)

    assert job.status == "completed"
    lines = lines_of(client, job.output_file_id)
    assert [int(line["custom_id"]) for line in lines] == list(range(len(requests)))
    engines = set()
    for line, (name, prompt) in zip(lines, requests, strict=True):
        assert text_of(line["response"]["body"]) == alone[name, prompt]
        assert line["response"]["body"]["model"] == name
        assert line["millrace"]["version"] == registry.versions[name][:12]
        engines.add(line["millrace"]["engine"])
    (engine,) = engines

    provenance = registry.stack.request("GET", f"/v1/batches/{job.id}/provenance").json()
    assert provenance["unknown_items"] == 0
    found = {one["model"]: one for one in provenance["data"]}
    assert found.keys() == set(NAMES)
    for name, one in found.items():
        assert (one["version"], one["items"]) == (registry.versions[name], LINES_PER_NAME)
        assert one["base_version"] == (None if name == BASE else registry.versions[BASE])
        assert one["engine"].startswith(engine)


def test_a_stored_version_is_planned_like_its_folder(registry: Registry) -> None:
    options = ("--device-gib", "2", "--output", "json")
    stored = registry.models("plan", BASE, *options)
    assert stored.exit_code == ExitCode.OK, stored.stderr
    folder = registry.stack.data.parent / "model"
    assert json.loads(stored.stdout) == json.loads(succeed("models", "plan", str(folder), *options))
    assert "adapter" in registry.models("plan", "first").stderr


def test_pinned_names_and_aliases_answer_online(registry: Registry) -> None:
    digest = registry.versions[BASE]
    expected = registry.text(BASE, PROMPTS[0])
    assert registry.models("alias", "chat", BASE).exit_code == ExitCode.OK
    for name, written in ((f"{BASE}@{digest[:12]}", BASE), ("chat", "chat")):
        answer = registry.answer(name, PROMPTS[0])
        assert answer.status_code == 200, answer.text
        assert (answer.json()["model"], text_of(answer.json())) == (name, expected)
        assert answer.headers["x-millrace-model-version"] == f"{written}@{digest}"
        assert answer.json()["system_fingerprint"].startswith(f"{written}@{digest}+")


def test_an_alias_that_moves_does_not_change_a_batch(registry: Registry) -> None:
    client, count = registry.stack.client, 40
    assert registry.models("alias", "prod", "first").exit_code == ExitCode.OK
    expected, after = (registry.text(name, PROMPTS[0]) for name in ("prod", "second"))
    job = create_job(client, upload(client, file_of([("prod", PROMPTS[0])] * count)))
    paused = registry.stack.request("POST", f"/v1/batches/{job.id}/pause")
    assert paused.status_code == 200, paused.text

    assert registry.models("alias", "prod", "second").exit_code == ExitCode.OK
    until(
        lambda: registry.text("prod", PROMPTS[0]) == after, "the API to read the alias", STEP_S_MAX
    )
    registry.stack.request("POST", f"/v1/batches/{job.id}/resume")
    job = watch(client, job.id, ended)

    lines = lines_of(client, job.output_file_id)
    assert Counter(text_of(line["response"]["body"]) for line in lines) == {expected: count}
    assert {line["millrace"]["version"] for line in lines} == {registry.versions["first"][:12]}


def test_a_private_adapter_is_another_tenants_secret(registry: Registry) -> None:
    stack, name = registry.stack, registry.private
    owner = OpenAI(base_url=f"{stack.url}/v1", api_key=registry.key_of_owner)
    messages: list[Any] = [{"role": "user", "content": PROMPTS[0]}]
    answer = owner.chat.completions.create(
        model=name, messages=messages, max_tokens=TOKENS, temperature=0
    )
    assert answer.choices[0].message.content != registry.text(BASE, PROMPTS[0])
    assert name in {model.id for model in owner.models.list()}

    version = shown(stack, name, registry.key_of_owner)["version"]
    assert name not in {model.id for model in stack.client.models.list()}
    for text in (name, f"{name}@{version[:12]}"):
        assert stack.request("GET", f"/v1/models/{text}").status_code == 404
        with pytest.raises(NotFoundError):
            stack.client.chat.completions.create(model=text, messages=messages)
    client = stack.client
    requests = [(BASE, PROMPTS[0]), (name, PROMPTS[0])]
    job = create_job(client, upload(client, file_of(requests)))
    job = watch(client, job.id, ended)
    errors = job.errors.data if job.errors is not None and job.errors.data is not None else []
    assert (job.status, [one.code for one in errors]) == ("failed", ["model_not_found"])


def test_a_tampered_file_is_refused(registry: Registry, tmp_path: Path) -> None:
    """The replica ends before it imports vLLM."""
    stack = registry.stack
    weights = with_flipped_byte(stack.data, registry.versions[OTHER])

    verified = registry.models("verify", OTHER)
    assert verified.exit_code == ExitCode.FAILED
    assert "model.safetensors" in verified.stdout

    log = tmp_path / "replica.log"
    with running_replica(registry, OTHER, tmp_path) as replica:
        until(
            lambda: "model_refused" in log.read_text() or replica.poll() is not None,
            "a refusal",
            REPLICA_S_MAX,
        )
        mapped = {one.path for one in psutil.Process(replica.pid).memory_maps()}
        replica.send_signal(signal.SIGTERM)  # it rests before it ends
        assert replica.wait(REPLICA_S_MAX) == 2, log.read_text()
    assert "model.safetensors" in log.read_text()
    assert not [path for path in mapped if "torch" in path]
    assert not [path for path in (tmp_path / "weights").rglob("*") if path.name == weights]


def with_flipped_byte(data: Path, version: str) -> str:
    """Change a byte of the weights in the object store; return their digest."""
    manifest = json.loads((data / "objects" / "models" / "manifests" / version).read_bytes())
    digests = {one["path"]: one["sha256"] for one in manifest["files"]}
    digest = str(digests["model.safetensors"])
    path = data / "objects" / file_key(digest)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    return digest
