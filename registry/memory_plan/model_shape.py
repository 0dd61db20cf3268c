"""Reads from a model's `config.json` the sizes that determine its memory.

The names of the fields are those of Hugging Face Transformers; where models differ, the
alternatives and their order are vLLM's (`vllm/transformers_utils/model_arch_config_convertor.py`).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from core.errors import Disposition, MillraceError

CONFIG_BYTES_MAX: Final = 8 * 1024 * 1024
SIZE_MAX: Final = 2**31
"""The largest size that a configuration may name, so that no product becomes huge."""

LAYERS_MAX: Final = 10_000

_ENCODERS: Final = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "distilbert",
        "electra",
        "gte",
        "modernbert",
        "new",
        "nomic_bert",
        "roberta",
        "xlm-roberta",
    }
)
"""Model types whose attention is bidirectional, so that vLLM keeps no KV cache."""

_RECURRENT_FIELDS: Final = ("ssm_cfg", "mamba_d_state", "ssm_state_size", "linear_num_value_heads")
_RECURRENT_LAYERS: Final = frozenset({"linear_attention", "mamba", "recurrent", "conv", "kda"})


class InvalidConfigError(MillraceError):
    """The configuration of the model cannot be read."""

    code = "model_config_invalid"
    disposition = Disposition.REJECT


class AttentionKind(StrEnum):
    """What the KV cache of a model holds for each token and layer."""

    HEADS = "heads"  # a key and a value for each KV head: multi-head, grouped or multi-query
    LATENT = "latent"  # one compressed vector: multi-head latent attention (MLA)
    NONE = "none"  # no KV cache: an encoder


class ModelShape(msgspec.Struct, frozen=True):
    """The sizes of a model. Counts are of the whole model, not of one device."""

    model_type: str
    attention: AttentionKind
    layers: int
    hidden: int
    intermediate: int
    heads: int  # 0: a model without attention, such as Mamba
    kv_heads: int
    head_size: int
    vocabulary: int
    context_tokens: int  # the longest sequence of the model
    latent: int = 0  # MLA: elements of the compressed vector, with its rotary part
    indexer: int = 0  # sparse MLA: elements of the key of the indexer
    experts_per_token: int = 0
    expert_intermediate: int = 0
    has_tied_embeddings: bool = False
    is_quantized: bool = False  # the files hold quantized weights
    sliding_window: int = 0  # tokens; 0: none
    has_recurrent_layers: bool = False
    has_encoder_decoder: bool = False


def parse_config(data: bytes) -> ModelShape:
    """Return the shape of the model that `config.json` describes. Raises InvalidConfigError."""
    if len(data) > CONFIG_BYTES_MAX:
        raise InvalidConfigError(f"config.json has more than {CONFIG_BYTES_MAX} bytes.")
    try:
        config = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidConfigError("config.json is not a JSON object.") from None
    return shape_of(config)


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape of a model by its configuration. Raises InvalidConfigError."""
    text = _text_config(config)
    layers = _size(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if layers > LAYERS_MAX:
        raise InvalidConfigError(f"The model has more than {LAYERS_MAX} layers.")
    heads = _size(text, "num_attention_heads", "n_head", "num_heads", "n_heads", default=0)
    hidden = _size(text, "hidden_size", "n_embd", "d_model")
    intermediate = _size(
        text, "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", default=4 * hidden
    )
    attention = _attention_kind(text)
    rotary = _size(text, "qk_rope_head_dim", default=0)
    return ModelShape(
        model_type=_text(text.get("model_type")),
        attention=attention,
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=_kv_heads(text, heads),
        head_size=_size(
            text, "head_dim", "hidden_size_per_head", default=hidden // heads if heads else 0
        ),
        vocabulary=_size(text, "vocab_size", "padded_vocab_size", default=0),
        context_tokens=_context_tokens(text),
        latent=_size(text, "kv_lora_rank") + rotary if attention is AttentionKind.LATENT else 0,
        indexer=_size(text, "index_head_dim", default=0) if text.get("index_topk") else 0,
        experts_per_token=_size(
            text, "num_experts_per_tok", "num_experts_per_token", "moe_topk", default=0
        ),
        expert_intermediate=_size(text, "moe_intermediate_size", default=intermediate),
        has_tied_embeddings=_has_tied_embeddings(config, text),
        is_quantized=bool(
            config.get("quantization_config")
            or config.get("compression_config")
            or text.get("quantization_config")
        ),
        sliding_window=_sliding_window(text),
        has_recurrent_layers=_has_recurrent_layers(text),
        has_encoder_decoder=config.get("is_encoder_decoder") is True,
    )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of the configuration of a model of several modalities."""
    for name in ("text_config", "llm_config", "language_config", "thinker_config"):
        part = config.get(name)
        if isinstance(part, dict) and part:
            return _text_config(part) if name == "thinker_config" else part
    return config


def _attention_kind(text: Mapping[str, Any]) -> AttentionKind:
    if _text(text.get("model_type")) in _ENCODERS or text.get("is_causal") is False:
        return AttentionKind.NONE
    return AttentionKind.LATENT if text.get("kv_lora_rank") else AttentionKind.HEADS


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1  # Falcon 7B and GPT BigCode name no count
    return _size(
        text,
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
        default=heads,
    )


def _context_tokens(text: Mapping[str, Any]) -> int:
    names = (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "model_max_length",
        "max_sequence_length",
    )
    found = [_size(text, name) for name in names if text.get(name) is not None]
    return min(found, default=0)


def _has_tied_embeddings(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    value = config.get("tie_word_embeddings")
    return (text.get("tie_word_embeddings") if value is None else value) is True


def _sliding_window(text: Mapping[str, Any]) -> int:
    window = text.get("sliding_window") or text.get("attention_chunk_size")
    if text.get("use_sliding_window") is False or not isinstance(window, int):
        return 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" not in kinds:
        return 0
    return window


def _has_recurrent_layers(text: Mapping[str, Any]) -> bool:
    if any(text.get(name) is not None for name in _RECURRENT_FIELDS):
        return True
    kinds = [text.get(name) for name in ("layer_types", "layers_block_type", "block_types")]
    return any(
        _RECURRENT_LAYERS & {kind for kind in one if isinstance(kind, str)}
        for one in kinds
        if isinstance(one, list)
    )


def _text(value: Any) -> str:
    return value[:64] if isinstance(value, str) else ""


def _size(text: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Return the first of the fields that is set. Raises InvalidConfigError."""
    for name in names:
        value = text.get(name)
        if value is None or (value == 0 and default is not None):
            continue
        if isinstance(value, list) and value:  # one value for each layer: the largest
            value = max(value) if all(isinstance(one, int) for one in value) else None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < SIZE_MAX:
            raise InvalidConfigError(f"`{name}` of config.json is not a size.")
        return value
    if default is None:
        raise InvalidConfigError(f"config.json has no `{names[0]}`.")
    return default
