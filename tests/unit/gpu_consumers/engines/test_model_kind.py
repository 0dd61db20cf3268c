"""Goal: a model's files decide between generation and pooling."""

import pytest

from gpu_consumers.engines.model_kind import Runner, endpoints_of, runner_of


@pytest.mark.parametrize(
    ("architecture", "files", "runner"),
    [
        ("LlamaForCausalLM", set(), "generate"),
        ("T5ForConditionalGeneration", set(), "generate"),
        ("GPT2LMHeadModel", set(), "generate"),
        ("BertModel", {"1_Pooling", "modules.json"}, "pooling"),
        ("BertModel", set(), "pooling"),
        ("BertForSequenceClassification", set(), "pooling"),
        ("Qwen3ForCausalLM", {"modules.json"}, "pooling"),
        ("MistralForCausalLM", {"1_Pooling"}, "pooling"),
    ],
)
def test_runner_of_a_model(architecture: str, files: set[str], runner: Runner) -> None:
    assert runner_of({"architectures": [architecture]}, files) == runner


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM"])
def test_unknown_configuration_is_not_generative(architectures: object) -> None:
    assert runner_of({"architectures": architectures}, set()) == "pooling"


@pytest.mark.parametrize(
    ("architecture", "labels", "endpoints"),
    [
        ("LlamaForCausalLM", None, {"/v1/chat/completions", "/v1/completions"}),
        ("BertModel", None, {"/v1/embeddings", "/v1/score", "/v1/rerank"}),
        ("BertForSequenceClassification", ["a", "b"], {"/v1/classify"}),
        ("BertForSequenceClassification", None, {"/v1/classify"}),
        ("BertForSequenceClassification", ["a"], {"/v1/classify", "/v1/score", "/v1/rerank"}),
    ],
)
def test_endpoints_of_a_model(
    architecture: str, labels: list[str] | None, endpoints: set[str]
) -> None:
    config: dict[str, object] = {"architectures": [architecture]}
    if labels is not None:
        config["id2label"] = dict(enumerate(labels))
    assert set(endpoints_of(config, set())) == endpoints
