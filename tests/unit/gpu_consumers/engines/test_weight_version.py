"""Goal: no output of other weights than those that were loaded becomes a result."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from core.errors import PoolUnavailableError
from gpu_consumers.engines.vllm.weight_version import WeightVersionError, WeightVersionGuard

VERSION = "a" * 64


@dataclass
class Output:
    new_token_ids: list[int] = field(default_factory=list)
    pooling_output: Any = None


class Processor:
    def __init__(self) -> None:
        self.processed: list[tuple[Any, ...]] = []

    def process_outputs(self, outputs: list[Any], *arguments: Any, **named: Any) -> str:
        self.processed.append((outputs, arguments, named))
        return "processed"


def watched() -> tuple[Processor, WeightVersionGuard, list[WeightVersionError]]:
    processor, failures = Processor(), list[WeightVersionError]()
    guard = WeightVersionGuard(VERSION, failures.append)
    guard.watch(processor)
    return processor, guard, failures


def test_outputs_of_the_loaded_weights_pass_unchanged() -> None:
    processor, guard, failures = watched()
    outputs = [Output([1]), Output(pooling_output=[0.5])]
    assert processor.process_outputs(outputs, 1.5, None, weight_version=VERSION) == "processed"
    assert processor.processed == [(outputs, (1.5, None), {"weight_version": VERSION})]
    guard.raise_failure()
    assert failures == []


@pytest.mark.parametrize("label", ["default", "b" * 64, None])
@pytest.mark.parametrize("output", [Output([1]), Output(pooling_output=[0.5])])
def test_output_with_another_label_is_not_processed(label: str | None, output: Output) -> None:
    processor, guard, failures = watched()
    for _ in range(2):
        with pytest.raises(WeightVersionError):
            processor.process_outputs([Output(), output], 1.5, weight_version=label)
    assert processor.processed == []
    assert [failure.facts for failure in failures] == [{"expected": VERSION, "found": label}]
    with pytest.raises(PoolUnavailableError):  # items are requeued without an attempt
        guard.raise_failure()


def test_aborted_sequences_have_no_label() -> None:
    processor, guard, _ = watched()
    processor.process_outputs([Output()], 1.5)
    assert len(processor.processed) == 1
    guard.raise_failure()
