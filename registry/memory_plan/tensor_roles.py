"""Says how vLLM divides each tensor of a model among devices, by the tensor's name.

Tensor parallelism follows Megatron-LM (Shoeybi et al. 2019): matrices are divided by columns or by
rows, embeddings by the vocabulary. A tensor whose name is not known counts whole on each device, so
that a plan is never too small.
"""

import re
from enum import StrEnum
from typing import Final

from registry.memory_plan.model_shape import ModelShape
from registry.memory_plan.safetensors_header import Tensor


class TensorRole(StrEnum):
    """How a tensor is divided by tensor parallelism."""

    COLUMN = "column"  # by outputs, with its bias
    ROW = "row"  # by inputs; its bias is on each device
    KEY_VALUE = "key_value"  # by KV heads; with fewer heads than devices each has one head
    FUSED_QKV = "fused_qkv"  # queries, keys and values in one matrix
    VOCABULARY = "vocabulary"  # an embedding, by tokens
    EXPERT = "expert"  # by experts, or each expert like an MLP
    WHOLE_LINEAR = "whole_linear"  # a linear layer that each device has whole
    WHOLE = "whole"  # each device has it whole
    UNUSED = "unused"  # vLLM does not load it


_ROLES: Final = {
    TensorRole.COLUMN: """q_proj gate_proj up_proj gate_up_proj w1 w3 fc1 c_fc dense_h_to_4h
        q_b_proj kv_b_proj query""",
    TensorRole.ROW: "o_proj down_proj w2 fc2 c_proj dense_4h_to_h out_proj",
    TensorRole.KEY_VALUE: "k_proj v_proj key value",
    TensorRole.FUSED_QKV: "qkv_proj query_key_value W_pack c_attn Wqkv",
    TensorRole.VOCABULARY: "embed_tokens word_embeddings wte tok_embeddings lm_head embed_out",
    TensorRole.WHOLE_LINEAR: "kv_a_proj_with_mqa q_a_proj fused_qkv_a_proj",
}
_ROLE_OF: Final = {name: role for role, names in _ROLES.items() for name in names.split()}
_OUTPUT_HEADS: Final = frozenset({"lm_head", "embed_out"})
_MEDIA: Final = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|image\w*|multi_modal\w*|mm_\w+)\.")
_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,6})\.")
_EXPERT: Final = re.compile(r"\.experts\.")
_ENCODER_OUTPUT: Final = re.compile(r"\.(intermediate)\.dense\.")
_UNUSED: Final = re.compile(r"(rotary_emb\.inv_freq|\.masked_bias|\.attn\.bias)$")
_DRAFT: Final = re.compile(r"(^|\.)(mtp|eagle)\.")


def role_of(tensor: Tensor, shape: ModelShape, *, has_draft: bool = False) -> TensorRole:
    """Return how a tensor is divided. `has_draft`: speculative decoding loads the draft layers."""
    name = tensor.name
    layer = layer_of(name)
    is_draft = _DRAFT.search(name) or (layer is not None and layer >= shape.layers)
    if _UNUSED.search(name) or (is_draft and not _MEDIA.search(name) and not has_draft):
        return TensorRole.UNUSED
    if _MEDIA.search(name):
        return TensorRole.WHOLE
    if _EXPERT.search(name):
        return TensorRole.EXPERT
    if _ENCODER_OUTPUT.search(name):
        return TensorRole.COLUMN
    for part in reversed(name.split(".")[:-1]):
        if (role := _ROLE_OF.get(part)) is not None:
            is_copy = part in _OUTPUT_HEADS and shape.has_tied_embeddings
            return TensorRole.UNUSED if is_copy else role
    return TensorRole.WHOLE


def layer_of(name: str) -> int | None:
    """Return the number of the decoder layer that a tensor belongs to; None for none."""
    if _MEDIA.search(name):
        return None
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def is_output(name: str) -> bool:
    """Whether a tensor is after the last layer, and so on the last stage of a pipeline."""
    parts = name.split(".")
    return bool(_OUTPUT_HEADS.intersection(parts)) or parts[-2:-1] in (["norm"], ["ln_f"])
