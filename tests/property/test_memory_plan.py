"""Properties of the memory plan: it grows with the model and shrinks with parallelism."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.memory_plan.memory_options import MemoryOptions
from registry.memory_plan.memory_plan import MemoryPlan, plan_memory
from registry.memory_plan.model_shape import shape_of
from tests.support.weight_files import llama_config, llama_tensors

_LAYERS = st.integers(1, 12)
_HEADS = st.sampled_from([1, 2, 4, 8])
_DEVICE = st.integers(2**28, 2**40)


def _plan(layers: int, kv_heads: int, device_bytes: int, **options: Any) -> MemoryPlan:
    shape = shape_of(
        llama_config(
            hidden_size=512,
            intermediate_size=1024,
            num_attention_heads=8,
            num_key_value_heads=kv_heads,
            num_hidden_layers=layers,
            vocab_size=1024,
        )
    )
    return plan_memory(llama_tensors(shape), shape, MemoryOptions(**options), device_bytes)


@given(layers=_LAYERS, kv_heads=_HEADS, device_bytes=_DEVICE)
def test_a_layer_more_never_needs_less(layers: int, kv_heads: int, device_bytes: int) -> None:
    fewer = _plan(layers, kv_heads, device_bytes)
    more = _plan(layers + 1, kv_heads, device_bytes)
    assert more.weights_bytes > fewer.weights_bytes
    assert more.kv_token_bytes > fewer.kv_token_bytes
    assert more.required_bytes > fewer.required_bytes
    assert more.kv_tokens <= fewer.kv_tokens


@given(layers=_LAYERS, kv_heads=_HEADS, device_bytes=_DEVICE)
def test_two_devices_halve_what_is_divided(layers: int, kv_heads: int, device_bytes: int) -> None:
    one = _plan(layers, kv_heads, device_bytes)
    two = _plan(layers, kv_heads, device_bytes, tensor_parallel_size=2)
    assert one.weights_bytes // 2 <= two.weights_bytes < one.weights_bytes
    assert two.kv_token_bytes == (one.kv_token_bytes // 2 if kv_heads > 1 else one.kv_token_bytes)


@given(layers=_LAYERS, stages=st.integers(1, 6), device_bytes=_DEVICE)
def test_a_stage_of_a_pipeline_has_no_more_than_the_model(
    layers: int, stages: int, device_bytes: int
) -> None:
    whole = _plan(layers, 4, device_bytes)
    stage = _plan(layers, 4, device_bytes, pipeline_parallel_size=stages)
    assert stage.weights_bytes <= whole.weights_bytes
    assert stage.weights_bytes * stages >= whole.weights_bytes
    assert stage.kv_token_bytes * stages >= whole.kv_token_bytes


@given(
    layers=_LAYERS,
    kv_heads=_HEADS,
    device_bytes=st.integers(0, 2**40),
    share=st.floats(0.01, 1),
    length=st.integers(1, 2**20),
    adapters=st.integers(0, 8),
)
def test_the_kv_cache_is_never_negative_and_never_exceeds_the_device(
    layers: int, kv_heads: int, device_bytes: int, share: float, length: int, adapters: int
) -> None:
    shape = shape_of(llama_config(num_hidden_layers=layers, num_key_value_heads=kv_heads))
    options = MemoryOptions(max_model_len=length, adapters_max=adapters)
    plan = plan_memory(llama_tensors(shape), shape, options, device_bytes, share)
    assert 0 <= plan.kv_cache_memory_bytes <= plan.usable_bytes
    assert plan.kv_cache_memory_bytes % (plan.kv_token_bytes * plan.kv_block_tokens) == 0
    if plan.fits:
        assert plan.sequences_at_max_len >= 1
    else:
        assert plan.sequences_at_max_len == 0
