"""Checks that every output was computed by the weights that were loaded.

vLLM labels each output of its engine with a weight version, which its interface for weight updates
changes. The label is the version of the model. An output with another label is no result: items are
requeued without an attempt, and the replica ends. The check is where outputs enter this process, so
it holds for text, streams and vectors, before a token of them is shown; it costs a comparison for
each step of the engine.
"""

from collections.abc import Callable
from typing import Any

from core.errors import PoolUnavailableError


class WeightVersionError(PoolUnavailableError):
    """An output of the engine was computed by other weights than those that were loaded."""

    code = "weight_version_mismatch"


class WeightVersionGuard:
    """Compares the labels of outputs with the loaded version."""

    def __init__(self, version: str, on_mismatch: Callable[[WeightVersionError], None]) -> None:
        """`on_mismatch` is called once, on the event loop."""
        self._version, self._on_mismatch = version, on_mismatch
        self.failure: WeightVersionError | None = None
        """Set from the first other label on; every item has this failure then."""

    def watch(self, output_processor: Any) -> None:
        """Check all outputs before vLLM's processor gets them."""
        process_outputs = output_processor.process_outputs

        def process_checked(
            outputs: list[Any], *arguments: Any, weight_version: str | None = None, **named: Any
        ) -> Any:
            if weight_version != self._version and any(map(_is_computed, outputs)):
                self._fail(weight_version)
            return process_outputs(outputs, *arguments, weight_version=weight_version, **named)

        output_processor.process_outputs = process_checked

    def raise_failure(self) -> None:
        """Raise WeightVersionError if an output had another label."""
        if self.failure is not None:
            raise self.failure

    def _fail(self, found: str | None) -> None:
        if self.failure is None:
            self.failure = WeightVersionError(expected=self._version, found=found)
            self._on_mismatch(self.failure)
        raise self.failure  # ends vLLM's loop over outputs, which fails every sequence


def _is_computed(output: Any) -> bool:
    """Whether an output holds tokens or a vector; that of an aborted sequence has no label."""
    return bool(output.new_token_ids) or output.pooling_output is not None
