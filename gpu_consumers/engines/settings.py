"""Settings of the engine of a GPU consumer, checked before a model is loaded."""

from datetime import date
from pathlib import Path
from typing import ClassVar, Final, Literal, Self
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    SecretStr,
    field_validator,
    model_validator,
)

from core.secret_keys import decoded_keys
from core.settings import Settings
from gpu_consumers.engines.engine_slots import square_root_headroom

CPU_SEQUENCES: Final = 128
"""vLLM's own default of the sequences in one step on a CPU. On a GPU it depends on the memory, and
is known when vLLM has started."""

ADAPTER_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM's `max_lora_rank` takes."""

_OF_VLLM: Final = frozenset(
    {
        *("trusted_keys", "weight_cache", "weight_cache_gib_max"),
        *("model_path", "unverified_until", "adapter_rank_max"),
    }
)


class SimulatedFault(BaseModel):
    """One fault, and the bodies that trigger it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contains: str = Field(min_length=1)
    """Text that the JSON of a triggering body contains."""

    fault: Literal["crash", "hang", "freeze", "oom", "error500", "overflow", "nan", "slow"]
    """`crash` ends the process at once. `hang` never answers and can be cancelled. `freeze` blocks
    the process. `oom` raises out of memory. `error500` answers with status 500. `overflow` is a
    prompt longer than the context. `nan` succeeds with log probabilities that were NaN. `slow`
    answers `slow_s` later."""

    slow_s: float = Field(default=0, ge=0)
    """For `slow`: seconds in addition to the latency."""

    @model_validator(mode="after")
    def _check_slow(self) -> Self:
        """Require `slow_s` for `slow` and for no other fault."""
        if (self.fault == "slow") != (self.slow_s > 0):
            raise ValueError("slow_s belongs to slow, which needs it")
        return self


class EngineSettings(Settings):
    """One engine, one model. Fields of another `kind` must be omitted."""

    env_prefix: ClassVar[str] = "MILLRACE_ENGINE_"

    kind: Literal["vllm", "openai_http", "simulated"]
    """No default: simulated answers must never be served by accident."""

    model_name: str = Field(min_length=1)
    """The model's name in request bodies and answers."""

    concurrency: int | None = Field(default=None, ge=1, le=65_536)
    """Items in execution at once. Default: 64; with vllm 1.25 × `vllm_max_num_seqs`, so that its
    queue never runs empty; items fill the same share of what online calls leave of a step."""

    interactive_headroom: int | None = Field(default=None, ge=0)
    """Slots of `concurrency` that bulk items leave free for online calls; fewer than all.
    Default: its square root, rounded up (square-root staffing); 0 reserves none."""

    item_timeout_s: float = Field(default=600.0, gt=0)
    """Longest execution of one item; then it fails with `item_timeout`. Default 600 s, the timeout
    of the official client."""

    upstream: str | None = Field(default=None, pattern=r"^https?://[^/\s]+")
    """openai_http: base URL, with or without `/v1`."""

    upstream_api_key: SecretStr | None = None
    """openai_http: the bearer token. Default: none."""

    upstream_failures_max: int = Field(default=20, ge=2)
    """openai_http: consecutive transient failures that open the circuit breaker: further ones are
    attributed to the upstream and charge no item. Default 20."""

    upstream_away_s_max: float = Field(default=900.0, ge=0)
    """openai_http: how long the breaker stays open without a success; then failures are charged to
    items again, so that a job of bad requests ends. Default 900 s."""

    upstream_busy_s_max: float = Field(default=10.0, ge=0)
    """openai_http: requests refused with 402, 429, 503 or 529 are retried with fewer at once. An
    upstream that refuses for longer, with no answer and no request in flight, counts as
    unavailable. Default 10 s."""

    upstream_is_vllm: bool = False
    """openai_http: the upstream is vLLM, so requests carry the salt of their tenant as
    `cache_salt`: no tenant reuses the prefix cache of another. Other servers may refuse the
    field. Default: no."""

    cache_salt_key: SecretStr | None = None
    """vllm, and an upstream that is vLLM: base64 of 32 random bytes, the key of the tenants' salts.
    Replicas with the same key share the prefix cache of a common upstream. Default: a random key
    for each process."""

    cache_salt_groups: Json[tuple[tuple[UUID, ...], ...]] | None = None
    """vllm, and an upstream that is vLLM: a JSON list of lists of tenant ids; the tenants of a list
    share one salt, and so the prefix cache. Default: none share."""

    connect_timeout_s: float = Field(default=5.0, gt=0)
    """openai_http: without a connection for this long the pool counts as unavailable; also the
    timeout of the probe after a 502 or 504 of a gateway. Default 5 s."""

    start_timeout_s: float = Field(default=60.0, gt=0)
    """openai_http: how long the start waits for the upstream. Default 60 s."""

    answer_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024)
    """openai_http, and embeddings, scores, classes and log probabilities of vllm: larger answers
    fail their item. Default 16 MiB."""

    simulated_latency_ms: float = Field(default=0.0, ge=0)
    """simulated: time of each item, or of a stream until its first token. Default 0: none."""

    simulated_token_ms: float = Field(default=0.0, ge=0)
    """simulated: time between two tokens of a stream. Default 0: one per iteration of the loop."""

    simulated_load_s: float = Field(default=0.0, ge=0, le=3600)
    """simulated: seconds that the start takes, as if a model were loaded. Default 0."""

    simulated_step_ms: float = Field(default=0.0, ge=0)
    """simulated: time of one step of the engine, in which every sequence gets one token, instead of
    latencies: an item takes as long as its tokens. 0: no steps. Default 0."""

    simulated_step_sequence_ms: float = Field(default=0.0, ge=0)
    """simulated: additional time of a step for each sequence in it. Default 0."""

    simulated_step_prompt_token_ms: float = Field(default=0.0, ge=0)
    """simulated: additional time of a step for each prompt token in it, 2,048 at most. Default
    0."""

    simulated_faults: Json[tuple[SimulatedFault, ...]] | None = None
    """simulated: faults to inject, for drills only: a JSON list of `{"contains": TEXT, "fault":
    KIND}`, KIND one of crash, hang, freeze, oom, error500, overflow, nan and slow (with `slow_s`).
    Default: none."""

    model_version: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """vllm: the version to load, which the registry has under `model_name`. Its files come from the
    object store and are verified before they are loaded. simulated: the version that batchers and
    operators see. The replica gets work of this version only; without one it gets all work of its
    pool."""

    trusted_keys: Path | None = None
    """vllm with `model_version`: file with one or more PEM public keys. Only versions that one of
    them has signed are loaded. Keep it where those who publish models cannot write."""

    weight_cache: Path | None = None
    """vllm with `model_version`: folder on a local disk for model files, shared by the replicas of
    a host that run as one user. Only its owner may enter it."""

    weight_cache_gib_max: int = Field(default=200, ge=1, le=1024 * 1024)
    """vllm with `model_version`: size of the weight cache. What was not used for longest is
    evicted, never a version that a process has staged. Default 200 GiB."""

    model_path: Path | None = None
    """vllm: folder with weights, configuration and tokenizer, instead of `model_version`. Nothing
    is downloaded and nothing verified, so it needs `unverified_until`."""

    unverified_until: date | None = None
    """vllm with `model_path`: the last day, in UTC, on which a replica may start with files that
    were not verified."""

    vllm_runner: Literal["auto", "generate", "pooling"] = "auto"
    """vllm: text or embeddings. Default auto: by the model's files."""

    vllm_dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = None
    """vllm: data type of weights and activations. Default: vLLM's own on a GPU; bfloat16 on a CPU,
    where float16 is five to eight times slower."""

    vllm_max_num_seqs: int | None = Field(default=None, ge=1)
    """vllm: sequences in one engine step. Default: vLLM's own on a GPU, by its memory; 128 on a
    CPU."""

    vllm_token_ms_max: float | None = Field(default=None, gt=0)
    """vllm: while the 95th percentile of the time between two tokens is larger, fewer bulk items
    run at once. Default: none; the KV cache alone limits them."""

    vllm_max_model_len: int | None = Field(default=None, ge=1)
    """vllm: context window in tokens. Default: the model's own."""

    vllm_enforce_eager: bool | None = None
    """vllm: skip compilation. Default: on a CPU, where it costs 15 s of start, and only there."""

    vllm_kv_cache_gib: int = Field(default=1, ge=1)
    """vllm on a CPU: memory for the KV cache. Default 1 GiB; on a GPU vLLM decides."""

    vllm_gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """vllm on a GPU: share of its memory to use. Default: vLLM's own."""

    vllm_tool_call_parser: str | None = Field(default=None, pattern=r"^[a-z0-9_]+$")
    """vllm: its parser for the model's tool calls, e.g. `hermes`. Default: none; then bodies that
    name a tool or let the model choose one are refused."""

    vllm_chat_template: Path | None = None
    """vllm: file with the Jinja chat template. Default: the model's own; without one chats are
    refused."""

    adapters_max: int = Field(default=0, ge=0, le=256)
    """vllm and simulated: LoRA adapters that are loaded at once; the least recently used one makes
    place for another. Each takes memory of the accelerator for the largest rank. Default 0: no
    adapters."""

    adapter_rank_max: int = 16
    """vllm: largest rank of an adapter: 1, 8, 16, 32, 64, 128, 256, 320 or 512. Default 16."""

    vllm_body_sequences_max: int = Field(default=128, ge=1)
    """vllm: sequences of one body, `n` for each prompt; more are refused with 400. They share one
    slot, and run in waves that leave places for other calls. Inputs to embed, score or classify run
    so many at a time, or fewer by their tokens. Default 128."""

    vllm_warm_up_s_max: float = Field(default=120.0, gt=0)
    """vllm: time for the requests that warm up a new engine; a replica that is not warm by then
    ends, and serves nothing. Default 120 s."""

    vllm_sleep_mode: bool = False
    """vllm on a GPU with CUDA: load with vLLM's sleep mode, in which a replica in standby keeps
    its weights in the memory of the host and frees the GPU. Default: no."""

    vllm_unbounded_grammars: bool = False
    """vllm: accept context-free grammars, structural tags and any pattern in bodies. Some stop the
    engine for seconds at each token: for tenants who trust each other. Default: no."""

    vllm_allowed_media_domains: str | None = Field(
        default=None, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(,[a-z0-9]([a-z0-9.-]*[a-z0-9])?)*$"
    )
    """vllm: host names, separated by commas, from which media URLs in bodies are fetched; redirects
    are not followed. Default: none. `data:` URLs always work."""

    @field_validator("cache_salt_key")
    @classmethod
    def _check_salt_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(decoded_keys(value)) != 1:
            raise ValueError("give one key")
        return value

    @field_validator("cache_salt_groups")
    @classmethod
    def _check_salt_groups(
        cls, value: tuple[tuple[UUID, ...], ...] | None
    ) -> tuple[tuple[UUID, ...], ...] | None:
        tenants = [tenant for group in value or () for tenant in group]
        if len(tenants) != len(set(tenants)):
            raise ValueError("a tenant may be in one group only")
        return value

    @field_validator("adapter_rank_max")
    @classmethod
    def _check_rank(cls, value: int) -> int:
        if value not in ADAPTER_RANKS:
            raise ValueError(f"must be one of {', '.join(map(str, ADAPTER_RANKS))}")
        return value

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        """Reject a kind without its required fields, and fields of another kind."""
        self._check_model()
        if self.kind == "openai_http" and self.upstream is None:
            raise ValueError("openai_http needs upstream")
        in_steps = self.simulated_step_sequence_ms or self.simulated_step_prompt_token_ms
        if in_steps and not self.simulated_step_ms:
            raise ValueError("the times of a step need simulated_step_ms")
        if self.simulated_step_ms and (
            self.simulated_latency_ms or self.simulated_token_ms or self.simulated_faults
        ):
            raise ValueError("simulated_step_ms excludes latencies and faults")
        if (self.cache_salt_key or self.cache_salt_groups) and not self.has_prefix_cache:
            raise ValueError("cache_salt_key and cache_salt_groups need vllm or upstream_is_vllm")
        has_known_slots = self.kind != "vllm" or self.concurrency or self.vllm_max_num_seqs
        if has_known_slots and (self.interactive_headroom or 0) >= self.items_at_once:
            raise ValueError("interactive_headroom must be less than concurrency")
        for name in sorted(self.model_fields_set):
            owner = _owner(name)
            if name == "model_version" and self.kind == "openai_http":
                raise ValueError("model_version belongs to vllm and simulated")
            if owner not in (None, self.kind) and getattr(self, name) is not None:
                raise ValueError(f"{name} belongs to {owner}, not to {self.kind}")
        if self.adapters_max and self.kind == "openai_http":
            raise ValueError("adapters_max belongs to vllm and simulated, not to openai_http")
        return self

    def _check_model(self) -> None:
        """Require either a version, with what verifies it, or a folder."""
        if self.kind != "vllm":
            return
        if (self.model_version is None) == (self.model_path is None):
            raise ValueError("vllm needs model_version or model_path, and not both")
        for name in ("trusted_keys", "weight_cache"):
            if self.model_version is not None and getattr(self, name) is None:
                raise ValueError(f"model_version needs {name}")
        of_version = {"trusted_keys", "weight_cache", "weight_cache_gib_max"}
        of_other = {"unverified_until"} if self.model_version is not None else of_version
        for name in sorted(of_other & self.model_fields_set):
            source = "model_path" if self.model_version is not None else "model_version"
            raise ValueError(f"{name} belongs to {source}")

    @property
    def has_prefix_cache(self) -> bool:
        """Whether the engine has vLLM's prefix cache, which tenants must not share."""
        return self.kind == "vllm" or self.upstream_is_vllm

    @property
    def items_at_once(self) -> int:
        """`concurrency`, or the default of the kind."""
        if self.concurrency is not None:
            return self.concurrency
        if self.kind != "vllm":
            return 64
        return self.items_with(self.vllm_max_num_seqs or CPU_SEQUENCES)

    def items_with(self, sequences_max: int) -> int:
        """`concurrency`, or its default for vLLM with so many sequences in a step."""
        return self.concurrency or max(2, sequences_max * 5 // 4)

    @property
    def headroom(self) -> int:
        """`interactive_headroom`, or its default."""
        return self.headroom_of(self.items_at_once)

    def headroom_of(self, items_at_once: int) -> int:
        """`interactive_headroom`, or its default for so many items at once; fewer than those."""
        if self.interactive_headroom is not None:
            return min(self.interactive_headroom, items_at_once - 1)
        return square_root_headroom(items_at_once)


def _owner(field: str) -> str | None:
    """Return the kind that a field belongs to; None for all kinds."""
    if field in _OF_VLLM or field.startswith("vllm_"):
        return "vllm"
    if field.startswith("simulated_"):
        return "simulated"
    if field in {"connect_timeout_s", "start_timeout_s"}:
        return "openai_http"
    return "openai_http" if field.startswith("upstream") else None
