"""Runs a real vLLM with adapters, and prints what it did as JSON: `... FOLDER`.

In a process of its own: vLLM reads the environment while it is imported.
"""

import asyncio
import ctypes
import dataclasses
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from cli.demo.demo_models import ensure_tiny_llama
from core.errors import MillraceError, PoolUnavailableError
from core.runtime.logs import configure_logs
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import ModelToLoad
from gpu_consumers.engines.vllm.vllm_engine import VllmEngine
from tests.support.lora_adapters import write_adapter

ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # a killed test leaves no process behind

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SERVED, ASKED = "tiny", "production"
VERSION = "5" * 64
PROMPTS = ["import os", "def run(self):", "class Path:", "return [", "for name in", "raise Value"]
GOOD = {name: name * 64 for name in "abc"}
BAD = {"large": "d" * 64, "broken": "e" * 64, "empty": "f" * 64}


class Folders:
    """The folders of adapters; counts who holds them."""

    def __init__(self, root: Path) -> None:
        self.paths = {
            GOOD[name]: write_adapter(root / name, seed) for seed, name in enumerate(GOOD)
        }
        self.paths[BAD["large"]] = write_adapter(root / "large", 7, rank=64)
        self.paths[BAD["broken"]] = write_adapter(root / "broken", 8)
        (root / "broken" / "adapter_model.safetensors").write_bytes(b"no tensors")
        self.paths[BAD["empty"]] = root / "empty"
        (root / "empty").mkdir()
        self.staged: Counter[str] = Counter()
        self.held: Counter[str] = Counter()

    async def stage(self, version: str) -> "Held":
        self.staged[version] += 1
        self.held[version] += 1
        return Held(self, version)


@dataclasses.dataclass
class Held:
    folders: Folders
    version: str

    @property
    def path(self) -> Path:
        return self.folders.paths[self.version]

    def release(self) -> None:
        self.folders.held[self.version] -= 1


def completion(prompt: str, **fields: Any) -> bytes:
    sampling = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    return msgspec.json.encode({"model": SERVED, "prompt": prompt} | sampling | fields)


async def answers(engine: VllmEngine, adapter: str = "", **fields: Any) -> list[EngineAnswer]:
    found: dict[int, EngineAnswer] = {}
    bodies = [completion(prompt, **fields) for prompt in PROMPTS]
    await engine.execute(COMPLETIONS, bodies, found.__setitem__, adapter)
    return [found[index] for index in range(len(bodies))]


async def tokens(engine: VllmEngine, adapter: str = "") -> list[list[int]]:
    contents = [msgspec.json.decode(one.body) for one in await answers(engine, adapter)]
    return [content["choices"][0]["token_ids"] for content in contents]


async def shown_models(engine: VllmEngine, adapter: str) -> dict[str, list[str]]:
    """Return what answers and events name as their model, of bodies that name an alias."""
    events: list[bytes] = []
    chat = {"model": ASKED, "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    body = msgspec.json.encode(chat)
    whole = await engine.serve(CHAT, body, None, None, adapter)
    stream = msgspec.json.encode(chat | {"stream": True})
    await engine.serve(CHAT, stream, events.append, None, adapter)
    text_events: list[bytes] = []
    stream = completion("a", model=ASKED, stream=True)
    await engine.serve(COMPLETIONS, stream, text_events.append, None, adapter)
    bulk = [one.body for one in await answers(engine, adapter, model=ASKED)]
    payloads = {"chat": [whole.body], "events": events, "text_events": text_events, "bulk": bulk}
    return {
        name: sorted({msgspec.json.decode(one)["model"] for one in found})
        for name, found in payloads.items()
    }


async def final_spans(engine: VllmEngine) -> list[dict[str, Any]]:
    """Return the weight versions of a sequence, by vLLM's own interface."""
    from vllm import SamplingParams

    client = engine._serving._engine  # type: ignore[union-attr]
    prompt, sampling = {"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=4)
    spans: list[Any] = []
    async for output in client.generate(prompt, sampling, "golden"):
        spans = output.outputs[0].weight_versions
    return [dataclasses.asdict(span) for span in spans]


async def other_weights(engine: VllmEngine, failures: list[MillraceError]) -> dict[str, Any]:
    """Label the engine's outputs otherwise, and return how items and a stream fail."""
    await engine._serving._engine.update_weight_version("6" * 64)  # type: ignore[union-attr]
    events: list[bytes] = []
    raised = []
    stream = completion("a", stream=True)
    for work in (
        engine.serve(COMPLETIONS, stream, events.append),
        answers(engine),
        engine.serve(COMPLETIONS, completion("b"), None),
    ):
        try:
            await work
        except PoolUnavailableError as failure:
            raised.append(failure.code)
    return {"raised": raised, "events": len(events), "reported": [one.code for one in failures]}


async def run(root: Path) -> dict[str, Any]:
    folders, failures = Folders(root / "adapters"), list[MillraceError]()
    folder = ensure_tiny_llama(root / "tiny")
    values = {"KIND": "vllm", "MODEL_NAME": SERVED, "MODEL_PATH": str(folder), "CONCURRENCY": "20"}
    values |= {"ADAPTERS_MAX": "2", "VLLM_MAX_NUM_SEQS": "16"}
    settings = EngineSettings.from_env({f"MILLRACE_ENGINE_{k}": v for k, v in values.items()})
    model = ModelToLoad(folder=folder, version=VERSION, engine_options={"max_model_len": 512})
    engine = VllmEngine(settings, model, stage_adapter=folders.stage, on_untrusted=failures.append)
    await engine.start()
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs

    found: dict[str, Any] = {"hash": engine.engine_hash}
    found["fields"] = [
        EngineCoreOutputs.__struct_fields__.count("weight_version"),
        EngineCoreOutput.__struct_fields__.count("new_token_ids"),
        EngineCoreOutput.__struct_fields__.count("pooling_output"),
    ]
    a, b, c = GOOD.values()
    found["base"] = await tokens(engine)
    first, again = await asyncio.gather(tokens(engine, a), tokens(engine, a))
    found["a"], found["a_again"], found["staged_at_once"] = first, again, folders.staged[a]
    found["b"] = await tokens(engine, b)
    works = (tokens(engine), tokens(engine, a), tokens(engine, b), tokens(engine))
    found["mixed"] = await asyncio.gather(*works)
    found["loaded"], found["held"] = [*engine.adapters], +folders.held
    found["c"] = await tokens(engine, c)  # in the place of the least recently used
    found["loaded_then"], found["held_then"] = [*engine.adapters], +folders.held
    found["reloaded"] = await asyncio.gather(tokens(engine, a), tokens(engine), tokens(engine, c))
    works = (tokens(engine, a), tokens(engine, b), tokens(engine, c), tokens(engine))
    found["three_in_two_slots"] = await asyncio.gather(*works)
    client = engine._serving._engine  # type: ignore[union-attr]
    found["known_to_vllm"] = len(await client.list_loras())
    found["bad"] = {
        name: [one.body.decode() for one in await answers(engine, version)]
        for name, version in BAD.items()
    }
    found["bad_call"] = (await engine.serve(CHAT, b"{}", None, None, BAD["broken"])).body.decode()
    found["base_after"] = await tokens(engine)
    found["held_after"], found["loaded_after"] = +folders.held, [*engine.adapters]
    found["models"] = {"base": await shown_models(engine, ""), "a": await shown_models(engine, a)}
    found["spans"] = await final_spans(engine)
    found["other_weights"] = await other_weights(engine, failures)
    await engine.stop()
    found["held_at_end"] = +folders.held
    return found


if __name__ == "__main__":
    configure_logs("gpu-consumer")
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run(Path(sys.argv[1])))))
