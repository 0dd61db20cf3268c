"""Request bodies that are small on the wire and expensive to validate, render or execute."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tests.support.hostile_sequences import USER, sequences_of_chats, sequences_of_completions

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
SCORE: Final = "/v1/score"
RERANK: Final = "/v1/rerank"
CLASSIFY: Final = "/v1/classify"

MANY: Final = 100_000


def nested(levels: int, leaf: Any) -> Any:
    """Return `leaf` inside so many objects of a JSON schema."""
    for _ in range(levels):
        leaf = {"type": "object", "properties": {"a": leaf}, "required": ["a"]}
    return leaf


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema whose references double at each level."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {
            "type": "object",
            "properties": {"a": below, "b": below},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


def wide(properties: int) -> dict[str, Any]:
    """Return a schema with so many optional properties."""
    return {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(properties)},
        "additionalProperties": False,
    }


def _schema(schema: Any) -> dict[str, Any]:
    json_schema = {"name": "x", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def _structured(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


def _tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _call(number: int) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"id": str(number), "type": "function", "function": function}


def _tag(number: int) -> dict[str, Any]:
    return {"begin": f"<a{number}>", "schema": {"type": "object"}, "end": f"</a{number}>"}


def _messages_and_tools() -> dict[str, dict[str, Any]]:
    """Return messages and tools."""
    url = "data:image/png;base64,"
    image = {"type": "image_url", "image_url": {"url": url}}
    text = {"type": "text", "text": "a"}
    return {
        "empty messages": {"messages": [{}] * MANY},
        "short messages": {"messages": [USER] * MANY},
        "numbers as messages": {"messages": [1] * 1_000_000},
        "text parts": {"messages": [{"role": "user", "content": [text] * MANY}]},
        "empty parts": {"messages": [{"role": "user", "content": [{}] * MANY}]},
        "numbers as parts": {"messages": [{"role": "user", "content": [1] * MANY}]},
        "string parts": {"messages": [{"role": "user", "content": ["a"] * MANY}]},
        "2,048 empty messages": {"messages": [{}] * 2_048},
        "lists of numbers as parts": {"messages": [{"role": "user", "content": [1] * 2_048}] * 190},
        "14,336 text parts": {"messages": [{"role": "user", "content": [text] * 2_048}] * 7},
        "9,500 text parts": {"messages": [{"role": "user", "content": [text] * 1_900}] * 5},
        "images": {"messages": [{"role": "user", "content": [image] * 10_000}]},
        "tool calls": {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [_call(number) for number in range(20_000)]},
            ]
        },
        "empty tool calls": {"messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]},
        "tools": {"tools": [_tool({"type": "object"}, f"f{number}") for number in range(20_000)]},
        "empty tools": {"tools": [{}] * MANY},
        "tools that are required": {
            "tools": [_tool(wide(20), f"f{number}") for number in range(500)],
            "tool_choice": "required",
        },
        "128 tools": {"tools": [_tool(wide(200), f"f{n}") for n in range(20)]},
        "a deep tool": {"tools": [_tool(nested(60, {}))], "tool_choice": "required"},
    }


def _lists_and_arguments() -> dict[str, dict[str, Any]]:
    """Return lists that vLLM reads element by element, and arguments of templates."""
    ids = list(range(100, 30_000)) * 10
    return {
        "stop strings": {"stop": [f"s{number}" for number in range(MANY)]},
        "a long stop string": {"stop": "s" * 1_000_000, "ignore_eos": True, "max_tokens": 200},
        "bad words": {"bad_words": [f"word {number}" for number in range(MANY)]},
        "a long bad word": {"bad_words": ["word " * 200_000]},
        "biases": {"logit_bias": {str(number): 1.0 for number in range(MANY)}},
        "biases of words": {"logit_bias": {f"w{number}": "x" for number in range(MANY)}},
        "stop tokens": {"stop_token_ids": ids},
        "allowed tokens": {"allowed_token_ids": ids, "max_tokens": 200},
        "tokens with log probabilities": {"logprobs": True, "logprob_token_ids": ids},
        "documents": {"documents": [{"title": "a", "text": "b"}] * MANY},
        "a template": {"chat_template": "{% for a in range(999999999) %}a{% endfor %}"},
        "a template as an argument": {
            "chat_template_kwargs": {"chat_template": "{{ 'a' * 999999999 }}"}
        },
        "template arguments": {
            "chat_template_kwargs": {f"k{number}": [number] * 10 for number in range(20_000)}
        },
    }


def _grammars() -> dict[str, dict[str, Any]]:
    """Return schemas, expressions and grammars."""
    return {
        "a deep schema": _schema(nested(60, {"type": "string"})),
        "a deep list": _schema({"enum": [deep_list(100)]}),
        "doubling references": _schema(doubling(40)),
        "a wide schema": _schema(wide(10_000)),
        "a schema of 500 properties": _schema(wide(500)),
        "128 answers of a schema": {"n": 128, "max_tokens": 1_900, "ignore_eos": True}
        | _schema(wide(500)),
        "a schema of 2,040 properties": _schema(wide(2_040)),
        "a schema of 20 objects of 200 properties": _schema(
            {"type": "object", "properties": {f"q{number}": wide(200) for number in range(20)}}
        ),
        "a schema of alternatives": _schema({"anyOf": [wide(5)] * 5_000}),
        "a long enumeration": _schema({"enum": [f"e{number}" for number in range(MANY)]}),
        "many items": _schema({"type": "array", "minItems": MANY, "items": {"type": "string"}}),
        "nested repetitions of items": _schema(repeated_items(4, 500)),
        "long strings": _schema({"type": "string", "minLength": MANY, "maxLength": 10**9}),
        "a pattern in a schema": _schema(
            {"type": "string", "pattern": "((a{1,500}){1,500}){1,500}"}
        ),
        "a recursive schema": _schema({"anyOf": [{"$ref": "#"}] * 1_000}),
        "an expression of repetitions": _structured(regex="((a{1,500}){1,500}){1,500}"),
        "a repeated alternation": _structured(regex="((a|b|ab|ba)*c?){200}" * 50),
        "a long expression": _structured(regex="(a|b)" * MANY),
        "a deep expression": _structured(regex="(" * 20_000 + "a" + ")" * 20_000),
        "a short expression": _structured(regex="((a|b|ab|ba)*c?){200}" * 5),
        "an ambiguous grammar": _structured(
            grammar='root ::= e\ne ::= "a" e e e e | [a-z] e e | ""\n'
        ),
        "alternatives of lengths": _schema(
            {"anyOf": [{"type": "string", "minLength": number} for number in range(500)]}
        ),
        "choices": _structured(choice=[f"choice {number}" for number in range(MANY)]),
        "a long choice": _structured(choice=["c" * 1_000_000]),
        "a grammar of many rules": _structured(
            grammar='root ::= "a"\n' + "".join(f'r{n} ::= r{n + 1} "b"\n' for n in range(20_000))
        ),
        "a doubling grammar": _structured(
            grammar="root ::= r0\n"
            + "".join(f"r{n} ::= r{n + 1} r{n + 1}\n" for n in range(40))
            + 'r40 ::= "a"\n'
        ),
        "a grammar of alternatives": _structured(
            grammar="root ::= " + " | ".join(f'"w{number}"' for number in range(50_000))
        ),
        "a lark grammar": _structured(grammar="start: " + "(" * 5_000 + '"a"' + ")" * 5_000),
        "structural tags": _structured(
            structural_tag=msgspec.json.encode(
                {"structures": [_tag(number) for number in range(5_000)], "triggers": ["<a"]}
            ).decode()
        ),
    }


def _recursive_schemas() -> dict[str, dict[str, Any]]:
    """Return schemas that refer to themselves."""
    itself = {"$ref": "#/$defs/a"}
    node = {"type": "object", "properties": {"a": {"type": "array", "items": itself}}}
    return {
        "a schema that is itself": _schema({"$ref": "#"}),
        "references in a circle": _schema(
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": itself}} | itself
        ),
        "a property that is itself": _schema(
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/properties/a"}},
                "required": ["a"],
            }
        ),
        "a tree of objects": _schema({"$defs": {"a": node}} | itself),
        "an endless object": _schema(
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
        ),
        "a tool that is itself": {"tools": [_tool(itself | {"$defs": {"a": itself}})]},
    }


def _texts_and_unknown_fields() -> dict[str, dict[str, Any]]:
    """Return long texts, and fields that vLLM does not know."""
    return {
        "a long word": {"messages": [{"role": "user", "content": "a" * 3_000_000}]},
        "a long text": {"messages": [{"role": "user", "content": "ab c " * 600_000}]},
        "a truncated long text": {
            "messages": [{"role": "user", "content": "ab c " * 600_000}],
            "truncate_prompt_tokens": 10,
        },
        "long spaces": {"messages": [{"role": "user", "content": " " * 3_000_000}]},
        "long emojis": {"messages": [{"role": "user", "content": "\U0001f469\u200d" * 400_000}]},
        "a long role": {"messages": [{"role": "r" * 1_000_000, "content": "Hi"}]},
        "unknown numbers": {"unknown": [1] * 1_000_000},
        "unknown objects": {"unknown": [{}] * 500_000},
        "unknown fields": {f"u{number}": 1 for number in range(MANY)},
        "extra arguments": {"vllm_xargs": {f"x{number}": 1 for number in range(MANY)}},
        "repetitions": {
            "repetition_detection": {
                "max_pattern_size": 10**6,
                "min_count": 2,
                "min_pattern_size": 1,
            },
            "max_tokens": 200,
        },
        "many log probabilities": {
            "logprobs": True,
            "top_logprobs": 20,
            "prompt_logprobs": 20,
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "word " * 600}],
        },
        "a number of digits": {"max_tokens": msgspec.Raw(b"1" * 1_000_000)},
        "metadata": {"metadata": {f"k{number}": "v" for number in range(MANY)}},
    }


def deep_list(levels: int) -> list[Any]:
    """Return a list inside so many lists."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def repeated_items(levels: int, count: int) -> dict[str, Any]:
    """Return a schema of arrays of arrays."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "minItems": count, "maxItems": count, "items": schema}
    return schema


def chat_bodies(model: str) -> Mapping[str, tuple[str, bytes]]:
    """Return hostile bodies of a model that generates, by name, with their endpoints."""
    base = {"model": model, "max_tokens": 5, "messages": [USER]}
    bodies = {
        name: (CHAT, msgspec.json.encode(base | fields))
        for group in (
            _messages_and_tools,
            _lists_and_arguments,
            _grammars,
            _recursive_schemas,
            sequences_of_chats,
            _texts_and_unknown_fields,
        )
        for name, fields in group().items()
    }
    raw = b'{"model":"%b","messages":[],%b}'
    deep = b'"u":' + b"[" * 500_000 + b"]" * 500_000
    repeated = b",".join([b'"stop":"a"'] * MANY)
    bodies["deep lists"] = (CHAT, raw % (model.encode(), deep))
    bodies["a repeated field"] = (CHAT, raw % (model.encode(), repeated))
    prompts: dict[str, dict[str, Any]] = sequences_of_completions() | {
        "prompts": {"prompt": ["a"] * MANY},
        "numbers and texts as prompts": {"prompt": [1, "a"] * MANY},
        "prompts of tokens": {"prompt": [[1]] * MANY},
        "tokens": {"prompt": [1] * 1_000_000},
        "objects as prompts": {"prompt": [{}] * MANY},
        "embedded prompts": {"prompt": "a", "prompt_embeds": ["AAAA"] * MANY},
        "a long suffix": {"prompt": "a", "suffix": "b" * 1_000_000},
    }
    for name, fields in prompts.items():
        bodies[name] = (
            COMPLETIONS,
            msgspec.json.encode({"model": model, "max_tokens": 5} | fields),
        )
    return bodies


def pooling_bodies(model: str) -> Mapping[str, tuple[str, bytes]]:
    """Return hostile bodies of a model that embeds and scores."""
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("inputs", EMBEDDINGS, {"input": ["a"] * MANY}),
        ("inputs of tokens", EMBEDDINGS, {"input": [[1]] * MANY}),
        ("tokens as input", EMBEDDINGS, {"input": [1] * 1_000_000}),
        ("objects as inputs", EMBEDDINGS, {"input": [{}] * MANY}),
        ("messages as inputs", EMBEDDINGS, {"input": [USER] * MANY}),
        ("conversations as inputs", EMBEDDINGS, {"input": [[USER]] * MANY}),
        ("mixed inputs", EMBEDDINGS, {"input": ["a", 1, [], {}] * 25_000}),
        ("messages to embed", EMBEDDINGS, {"messages": [USER] * MANY}),
        ("a long input", EMBEDDINGS, {"input": "word " * 600_000}),
        ("a long word as input", EMBEDDINGS, {"input": "a" * 3_000_000}),
        ("369,000 tokens", EMBEDDINGS, {"input": [[7] * 180] * 2_048}),
        (
            "numbers in messages",
            EMBEDDINGS,
            {"input": [{"role": "user", "content": [1] * 180}] * 2_048},
        ),
        ("2,048 inputs of 180 words", EMBEDDINGS, {"input": ["word " * 180] * 2_048}),
        (
            "300 truncated inputs",
            EMBEDDINGS,
            {"input": ["ab c " * 2_000] * 300, "truncate_prompt_tokens": 200},
        ),
        (
            "2,048 inputs as base64",
            EMBEDDINGS,
            {"input": ["a b c"] * 2_048, "encoding_format": "base64"},
        ),
        (
            "2,048 pairs of 150 words",
            SCORE,
            {"text_1": ["word " * 150] * 2_048, "text_2": ["term " * 150] * 2_048},
        ),
        (
            "2,048 documents of 200 words",
            RERANK,
            {"query": "word " * 200, "documents": ["term " * 200] * 2_048},
        ),
        ("2,048 inputs", EMBEDDINGS, {"input": ["a b c"] * 2_048}),
        ("first texts", SCORE, {"text_1": ["a"] * MANY, "text_2": "b"}),
        ("second texts", SCORE, {"text_1": "a", "text_2": ["b"] * MANY}),
        ("pairs", SCORE, {"text_1": ["a"] * MANY, "text_2": ["b"] * MANY}),
        ("objects as texts", SCORE, {"text_1": [{}] * MANY, "text_2": [{}] * MANY}),
        ("queries", SCORE, {"queries": ["a"] * MANY, "documents": ["b"] * MANY}),
        ("data", SCORE, {"data_1": "a", "data_2": [{"content": []}] * MANY}),
        ("2,048 texts", SCORE, {"text_1": "a", "text_2": ["b c"] * 2_048}),
        ("ranked documents", RERANK, {"query": "a", "documents": ["b"] * MANY}),
        ("ranked objects", RERANK, {"query": "a", "documents": [{"content": [{}]}] * MANY}),
        ("a long query", RERANK, {"query": "a " * 500_000, "documents": ["b"] * 100}),
        (
            "ranked long documents",
            RERANK,
            {"query": "a", "documents": ["word " * 3_000] * 200},
        ),
    ]
    return {
        name: (endpoint, msgspec.json.encode({"model": model} | fields))
        for name, endpoint, fields in cases
    }
