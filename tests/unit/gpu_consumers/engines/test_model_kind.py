"""Goal: a model's own files decide whether it writes text or makes vectors."""

import pytest

from gpu_consumers.engines.model_kind import Runner, runner_of


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
def test_the_runner_of_a_model(architecture: str, files: set[str], runner: Runner) -> None:
    assert runner_of({"architectures": [architecture]}, files) == runner


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM"])
def test_an_unclear_configuration_is_not_taken_for_a_text_model(architectures: object) -> None:
    assert runner_of({"architectures": architectures}, set()) == "pooling"
