"""Generates the table of vLLM's options: `python -m gpu_consumers.engines.vllm.option_table`.

It prints the content of `registry/engine_options/vllm_options.json`. Types and choices are those of
vLLM's command line, which hold for its configuration, too.
"""

import argparse
import sys
from enum import IntEnum
from typing import Any

import msgspec
import vllm
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

_TYPE_BY_PARSER = {
    "human_readable_int": "int",
    "human_readable_int_or_auto": "int",
    "int": "int",
    "float": "float",
    "str": "str",
    "loads": "object",
    "parse_dataclass": "object",
    "union_dict_and_str": "object",
}


def option_table() -> bytes:
    """Return the table as JSON with a line for each option."""
    parser = make_arg_parser(FlexibleArgumentParser())
    options = {
        action.dest: _option(action)
        for action in parser._actions  # noqa: SLF001  argparse has no public list
        if action.dest not in {"help", argparse.SUPPRESS}
    }
    lines = ",\n".join(
        f"    {msgspec.json.encode(name).decode()}: {msgspec.json.encode(options[name]).decode()}"
        for name in sorted(options)
    )
    release = vllm.__version__.partition("+")[0]
    return f'{{\n  "vllm": "{release}",\n  "options": {{\n{lines}\n  }}\n}}\n'.encode()


def _option(action: argparse.Action) -> dict[str, Any]:
    found: dict[str, Any] = {"type": _type_of(action)}
    if isinstance(action.default, IntEnum):  # its parser says text, and vLLM makes a number of it
        return {"type": "int", "choices": [int(level) for level in type(action.default)]}
    choices = [choice for choice in action.choices or () if choice is not None]
    if choices:
        found["choices"] = choices
    if action.default is None or None in (action.choices or ()):
        found["nullable"] = True
    if action.nargs in {"+", "*"}:
        found["many"] = True
    return found


def _type_of(action: argparse.Action) -> str:
    if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0:
        return "bool"
    parser: Any = action.type
    while callable(parser):
        name = getattr(parser, "__name__", "")
        if name in _TYPE_BY_PARSER:
            return _TYPE_BY_PARSER[name]
        # A wrapper: the inner parser is what it closes over.
        inner = [cell.cell_contents for cell in getattr(parser, "__closure__", None) or ()]
        parser = next((one for one in inner if callable(one)), None)
    return "str"


if __name__ == "__main__":
    sys.stdout.buffer.write(option_table())
