"""What a GPU consumer executes with; checked whole before a model is loaded."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, Json, SecretStr, model_validator

from core.settings import Settings
from gpu_consumers.engines.engine_slots import square_root_headroom
from gpu_consumers.engines.simulated.simulated_faults import SimulatedFault


class EngineSettings(Settings):
    """One engine, one model. Fields of another kind than `kind` must be left out."""

    env_prefix: ClassVar[str] = "MILLRACE_ENGINE_"

    kind: Literal["vllm", "openai_http", "simulated"]
    """No default: a simulated answer must never come by accident."""

    model_name: str = Field(min_length=1)
    """The name that bodies and answers use."""

    concurrency: int | None = Field(default=None, ge=1, le=65_536)
    """Items in execution at once. Default: 64; with vllm 1.25 × `vllm_max_num_seqs`, so that its
    own queue never runs dry; items take that much of what online calls leave of a step."""

    interactive_headroom: int | None = Field(default=None, ge=0)
    """Of `concurrency`, places that bulk items leave free for online calls; less than all of it.
    Default: its square root, rounded up, as staffing for random arrivals goes; 0 keeps none."""

    item_timeout_s: float = Field(default=600.0, gt=0)
    """Longest execution of one item; then it fails with `item_timeout`. Default 600 s, as the
    official client waits."""

    upstream: str | None = Field(default=None, pattern=r"^https?://[^/\s]+")
    """openai_http: base URL, with or without `/v1`."""

    upstream_api_key: SecretStr | None = None
    """openai_http: sent as a bearer token. Default: none."""

    upstream_failures_max: int = Field(default=20, ge=2)
    """openai_http: failures in a row, of a kind that may pass, after which they are taken for the
    upstream's and charge no item. Default 20."""

    upstream_away_s_max: float = Field(default=900.0, ge=0)
    """openai_http: how long they are taken so without one good answer; then they are believed, or
    a job of bad requests would never end. Default 900 s."""

    upstream_busy_s_max: float = Field(default=10.0, ge=0)
    """openai_http: an upstream that refuses with 402, 429, 503 or 529 is asked again, and for less
    at once. When it refuses for longer, answers nothing and has nothing of ours, it counts as away.
    Default 10 s."""

    connect_timeout_s: float = Field(default=5.0, gt=0)
    """openai_http: after this long without a connection the pool counts as away; also how long the
    upstream may take to say that it is there, after a 502 or 504 of a gateway. Default 5 s."""

    start_timeout_s: float = Field(default=60.0, gt=0)
    """openai_http: how long start waits for the upstream. Default 60 s."""

    answer_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024)
    """openai_http: larger answers fail their item. Default 16 MiB."""

    simulated_latency_ms: float = Field(default=0.0, ge=0)
    """simulated: how long each item takes, or a stream until its first token. Default 0: no
    waiting at all."""

    simulated_token_ms: float = Field(default=0.0, ge=0)
    """simulated: time between two tokens of a stream. Default 0: one in every turn of the loop."""

    simulated_faults: Json[tuple[SimulatedFault, ...]] | None = None
    """simulated: what goes wrong, for drills alone: a JSON list of `{"contains": TEXT, "fault":
    KIND}`, KIND one of crash, hang, freeze, oom, error500, overflow, nan and slow (with `slow_s`).
    Default: nothing."""

    model_path: Path | None = None
    """vllm: folder with weights, configuration and tokenizer. Nothing is downloaded."""

    vllm_runner: Literal["auto", "generate", "pooling"] = "auto"
    """vllm: text or vectors. Default auto: by the model's own files."""

    vllm_dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """vllm: float16 is five to eight times slower on a CPU. Default bfloat16."""

    vllm_max_num_seqs: int = Field(default=128, ge=1)
    """vllm: sequences in one engine step. Default 128."""

    vllm_max_model_len: int | None = Field(default=None, ge=1)
    """vllm: context window in tokens. Default: the model's own."""

    vllm_enforce_eager: bool | None = None
    """vllm: skip compilation. Default: on a CPU, where it costs 15 s of start, and only there."""

    vllm_kv_cache_gib: int = Field(default=1, ge=1)
    """vllm on a CPU: memory for the KV cache. Default 1 GiB; a GPU's is set by vLLM."""

    vllm_gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """vllm on a GPU: share of its memory to take. Default 0.9."""

    vllm_tool_call_parser: str | None = Field(default=None, pattern=r"^[a-z0-9_]+$")
    """vllm: which of its parsers reads the model's calls of tools, e.g. `hermes`. Default: none,
    and bodies that name a tool or let the model choose one are refused."""

    vllm_chat_template: Path | None = None
    """vllm: file with the Jinja template that turns messages into a prompt. Default: the model's
    own; a model without one refuses chats."""

    vllm_body_sequences_max: int = Field(default=128, ge=1)
    """vllm: sequences that one body may ask for, `n` for each prompt; more are refused with 400. It
    holds one place for all of them. Default 128."""

    vllm_allowed_media_domains: str | None = Field(
        default=None, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(,[a-z0-9]([a-z0-9.-]*[a-z0-9])?)*$"
    )
    """vllm: host names, separated by commas, from which images, sounds and videos that a body names
    by URL are fetched; redirects are not followed. Default: none. `data:` URLs always work."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        """Refuse a kind without what it needs, and fields of another kind."""
        if self.kind == "vllm" and self.model_path is None:
            raise ValueError("vllm needs model_path")
        if self.kind == "openai_http" and self.upstream is None:
            raise ValueError("openai_http needs upstream")
        if self.headroom >= self.items_at_once:
            raise ValueError("interactive_headroom must be less than concurrency")
        for name in sorted(self.model_fields_set):
            owner = _owner(name)
            if owner not in (None, self.kind) and getattr(self, name) is not None:
                raise ValueError(f"{name} belongs to {owner}, not to {self.kind}")
        return self

    @property
    def items_at_once(self) -> int:
        """`concurrency`, or the default of the kind."""
        if self.concurrency is not None:
            return self.concurrency
        return max(2, self.vllm_max_num_seqs * 5 // 4) if self.kind == "vllm" else 64

    @property
    def headroom(self) -> int:
        """`interactive_headroom`, or its default."""
        if self.interactive_headroom is not None:
            return self.interactive_headroom
        return square_root_headroom(self.items_at_once)


def _owner(field: str) -> str | None:
    """Return the kind that a field belongs to; None for all kinds."""
    if field == "model_path" or field.startswith("vllm_"):
        return "vllm"
    if field.startswith("simulated_"):
        return "simulated"
    if field in {"connect_timeout_s", "start_timeout_s", "answer_bytes_max"}:
        return "openai_http"
    return "openai_http" if field.startswith("upstream") else None
