"""Numbers that JSON cannot say: a model whose arithmetic fails answers with NaN or infinity.

What would become null in an answer that looks good is a failure of its item.
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

_STANDARD_LIBRARY_SAYS: Final = "not JSON compliant"


class NotFiniteError(ValueError):
    """A vector holds NaN or infinity."""


def check_vectors(data: Iterable[Mapping[str, Any]]) -> None:
    """Look at the vectors of an embeddings answer; one that is packed is left as it is.

    Raises NotFiniteError.
    """
    for row in data:
        vector = row["embedding"]
        # A sum is as good as a look at each number, at a tenth of its cost.
        if not isinstance(vector, str) and not math.isfinite(sum(vector)):
            raise NotFiniteError


def is_not_finite(failure: BaseException) -> bool:
    """Whether `failure` is ours, or the standard library's refusal to write such a number."""
    if isinstance(failure, NotFiniteError):
        return True
    return isinstance(failure, ValueError) and _STANDARD_LIBRARY_SAYS in str(failure)
