"""The defaults of sampling parameters that a model version may carry, under vLLM's own names.

vLLM takes these from a generation config (`--override-generation-config`) and ignores others.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from registry.engine_options.engine_options import NUMBER_MAX, InvalidOptionError

SAMPLING_DEFAULTS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "frequency_penalty": float,
        "max_new_tokens": int,
        "min_p": float,
        "presence_penalty": float,
        "repetition_penalty": float,
        "temperature": float,
        "top_k": int,
        "top_p": float,
    }
)
"""The type of each parameter; a whole number is a float, too."""

_NAME_CHARS_MAX: Final = 256


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """Raise InvalidOptionError for the first default that a version may not have; it says why."""
    for name, value in sampling.items():
        kind = SAMPLING_DEFAULTS.get(name)
        if kind is None:
            known = ", ".join(SAMPLING_DEFAULTS)
            raise InvalidOptionError(
                f"A version may not set the sampling parameter {name[:_NAME_CHARS_MAX]!r}; vLLM "
                f"has defaults of {known} only."
            )
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        if not is_number or not abs(value) <= NUMBER_MAX:  # comparisons with NaN are false
            what = "a whole number" if kind is int else "a number"
            raise InvalidOptionError(f"The sampling parameter `{name}` must be {what}.")
