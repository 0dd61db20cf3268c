"""NaN and infinity in answers, which JSON cannot represent: the model's arithmetic failed.

Such an item fails; its numbers would become null in an answer that looks valid.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpu_consumers.engines.error_answers import error_answer

NOT_FINITE: Final = error_answer(
    500,
    "The model's answer holds numbers that are not finite.",
    type_="server_error",
    code="answer_not_finite",
)

_JSON_MESSAGE: Final = "not JSON compliant"


class NotFiniteError(ValueError):
    """A vector holds NaN or infinity."""


def check_vectors(data: Iterable[Mapping[str, Any]]) -> None:
    """Check the vectors of an embeddings answer; base64 vectors are not checked.

    Raises NotFiniteError.
    """
    for row in data:
        vector = row["embedding"]
        # A sum finds the same as checking each number, at a tenth of the cost.
        if not isinstance(vector, str) and not math.isfinite(sum(vector)):
            raise NotFiniteError


def is_not_finite(failure: BaseException) -> bool:
    """Whether `failure` is NotFiniteError, or `json` refusing to encode such a number."""
    if isinstance(failure, NotFiniteError):
        return True
    return isinstance(failure, ValueError) and _JSON_MESSAGE in str(failure)
