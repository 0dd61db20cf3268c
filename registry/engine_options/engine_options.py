"""Checks the engine options of a model version before it is stored, without vLLM.

The table of options is generated from the pinned vLLM (`gpu_consumers.engines.vllm.option_table`),
so that the control plane, which has no vLLM, knows the same names, types and choices. What depends
on several options, or on the model, is for vLLM itself to judge, at the replica before it loads.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias

import msgspec

from core.errors import Disposition, MillraceError
from registry.engine_options.denied_options import DENIED, MAPPING_KEYS

TABLE_NAME: Final = "vllm_options.json"
TEXT_CHARS_MAX: Final = 256
LIST_MAX: Final = 256
NUMBER_MAX: Final = 2**53

OptionType: TypeAlias = Literal["bool", "int", "float", "str", "object"]


class InvalidOptionError(MillraceError):
    """The engine option is not valid."""

    code = "engine_option_refused"
    disposition = Disposition.REJECT


class EngineOption(msgspec.Struct, frozen=True, omit_defaults=True):
    """An option of vLLM."""

    type: OptionType
    choices: tuple[str | int, ...] = ()  # none: any value of the type
    nullable: bool = False
    many: bool = False  # the value is a list


class OptionTable(msgspec.Struct, frozen=True):
    """The options of one release of vLLM, by name."""

    vllm: str
    options: dict[str, EngineOption]


@cache
def option_table() -> OptionTable:
    """Return the options of the pinned vLLM."""
    data = files("registry.engine_options").joinpath(TABLE_NAME).read_bytes()
    return msgspec.json.decode(data, type=OptionTable)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidOptionError for the first option that a version may not have; it says why."""
    for name, value in options.items():
        if (reason := DENIED.get(name)) is not None:
            raise InvalidOptionError(f"A version may not set `{name}`: {reason}.")
        option = option_table().options.get(name)
        if option is None:
            raise InvalidOptionError(_unknown(name))
        _check_value(name, option, value)


def _unknown(name: str) -> str:
    table = option_table()
    shown = name[:TEXT_CHARS_MAX]
    near = get_close_matches(shown, table.options, n=1)
    hint = f" Did you mean `{near[0]}`?" if near else ""
    return f"vLLM {table.vllm} has no option {shown!r}.{hint}"


def _check_value(name: str, option: EngineOption, value: Any) -> None:
    if value is None and option.nullable:
        return
    values = value if option.many else [value]
    if not isinstance(values, list | tuple) or len(values) > LIST_MAX:
        raise InvalidOptionError(f"`{name}` must be a list of at most {LIST_MAX} values.")
    for one in values:
        if not _has_type(one, option.type):
            raise InvalidOptionError(f"`{name}` must be {_TYPE_TEXTS[option.type]}.")
        if option.choices and one not in option.choices:
            choices = ", ".join(map(str, option.choices))
            raise InvalidOptionError(f"`{name}` must be one of {choices}.")
        if option.type == "object":
            _check_keys(name, one)


def _check_keys(name: str, value: Mapping[str, Any]) -> None:
    allowed = MAPPING_KEYS.get(name, frozenset())
    for key, inner in value.items():
        if key not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise InvalidOptionError(
                f"A version may not set {key[:TEXT_CHARS_MAX]!r} of `{name}`, only: {known}."
            )
        values = inner if isinstance(inner, list | tuple) else [inner]
        if len(values) > LIST_MAX or not all(_is_plain(one) for one in values):
            raise InvalidOptionError(
                f"`{key}` of `{name}` must be a text (without `/` and first `-`), a number or a "
                "list of them."
            )


def _has_type(value: Any, kind: OptionType) -> bool:
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and _is_plain(value) and not isinstance(value, bool)
        case "float":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and _is_plain(value)
        case "str":
            return isinstance(value, str) and _is_plain(value)
        case "object":
            return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        # vLLM's command line would read a text that begins with `-` as another option.
        is_short = len(value) <= TEXT_CHARS_MAX
        return is_short and value.isprintable() and "/" not in value and not value.startswith("-")
    # Comparisons with NaN are false.
    return value is None or (isinstance(value, int | float) and abs(value) <= NUMBER_MAX)


_TYPE_TEXTS: Final[Mapping[OptionType, str]] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": f"a text of at most {TEXT_CHARS_MAX} printable characters, without `/` and first `-`",
    "object": "an object",
}
