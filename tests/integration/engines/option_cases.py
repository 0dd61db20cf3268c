"""Options of model versions, and what becomes of each: data of a test, and of real starts.

`PUSH`: the table or the list of denied options refuses it without vLLM. `ENGINE`: the table accepts
it, and vLLM refuses it for the tiny Llama on a CPU, before it loads weights. `ACCEPTED`: vLLM's
configuration has it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    PUSH = "refused at push"
    ENGINE = "refused by the engine"
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class OptionCase:
    name: str
    verdict: Verdict
    options: dict[str, Any]
    named: str = ""  # the option that a refusal names; empty: the first
    starts: bool = False  # a real start of the tiny Llama is tried with it

    @property
    def refused_option(self) -> str:
        return self.named or next(iter(self.options))


def _accepted(name: str, *, starts: bool = False, **options: Any) -> OptionCase:
    return OptionCase(name, Verdict.ACCEPTED, options, starts=starts)


def _refused(name: str, named: str = "", **options: Any) -> OptionCase:
    return OptionCase(name, Verdict.ENGINE, options, named)


def _at_push(name: str, named: str = "", **options: Any) -> OptionCase:
    return OptionCase(name, Verdict.PUSH, options, named)


_NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}

OPTION_CASES = (
    _accepted("none", starts=True),
    _accepted("context", starts=True, max_model_len=512),
    _accepted("float32", starts=True, dtype="float32"),
    _accepted("batch", starts=True, max_num_seqs=32, max_num_batched_tokens=1024),
    _accepted("no-prefix-cache", starts=True, enable_prefix_caching=False),
    _accepted("no-chunks", starts=True, enable_chunked_prefill=False, max_num_batched_tokens=4096),
    _accepted("ngram", starts=True, speculative_config=_NGRAM),
    _accepted("tool-parser", starts=True, tool_call_parser="hermes"),
    _accepted("reasoning-parser", starts=True, reasoning_parser="qwen3"),
    _accepted("grammars", starts=True, structured_outputs_config={"backend": "xgrammar"}),
    _accepted("tensor-parallel", tensor_parallel_size=2),
    _accepted("data-parallel", data_parallel_size=2),
    _accepted("fp8-weights", quantization="fp8"),
    _accepted("fp8-cache", kv_cache_dtype="fp8"),
    _accepted("no-compilation", compilation_config={"mode": 0}),
    _accepted("optimization", optimization_level=1),
    _accepted("template-argument", default_chat_template_kwargs={"enable_thinking": False}),
    _accepted("long-prompts", long_prefill_token_threshold=128),
    _accepted("null", max_model_len=None),
    _refused("context-too-long", max_model_len=4096),
    _refused("awq-of-plain-weights", quantization="awq"),
    _refused("step-below-context", max_num_batched_tokens=512, enable_chunked_prefill=False),
    _refused("no-sequences", max_num_seqs=0),
    _refused("step-below-sequences", max_num_seqs=64, max_num_batched_tokens=32),
    _refused("experts-of-dense-model", enable_expert_parallel=True),
    _refused("heads-not-divisible", tensor_parallel_size=3),
    _refused("context-parallel", decode_context_parallel_size=2),
    _refused("speculation-incomplete", speculative_config={"method": "ngram"}),
    _refused("speculation-unknown", speculative_config=_NGRAM | {"method": "oracle"}),
    _refused("tool-parser-unknown", tool_call_parser="nonsense"),
    _refused("reasoning-parser-unknown", reasoning_parser="nonsense"),
    _refused("grammars-unknown", structured_outputs_config={"backend": "nonsense"}),
    _refused("compilation-unknown", compilation_config={"mode": 9}),
    _refused("attention-unknown", attention_config={"backend": "NOPE"}),
    _refused("balanced-experts-on-cpu", enable_eplb=True),
    _refused("one-of-several", "max_model_len", enable_prefix_caching=False, max_model_len=9999),
    _at_push("unknown", max_num_sequences=8),
    _at_push("type", max_num_seqs="many"),
    _at_push("choice", dtype="float33"),
    _at_push("code", trust_remote_code=True),
    _at_push("code-by-name", worker_cls="evil.Worker"),
    _at_push("file", download_dir="cache"),
    _at_push("format", load_format="pt"),
    _at_push("network", kv_transfer_config={}),
    _at_push("logs", enable_log_requests=True),
    _at_push("ours", scheduling_policy="fcfs"),
    _at_push("template", chat_template="{{ 1 }}"),
    _at_push("machine", gpu_memory_utilization=0.5),
    _at_push("adapters", max_loras=4),
    _at_push("server", port=1),
    _at_push("path-in-text", "tokenizer_mode", tokenizer_mode="../../etc"),
    _at_push("option-in-list", "lora_target_modules", lora_target_modules=["q", "--headless"]),
    _at_push("draft-model", "speculative_config", speculative_config={"model": "x"}),
)
