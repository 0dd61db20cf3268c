"""Goal: the version registered last serves new jobs, and a version never changes."""

import pytest
import sqlalchemy as sa

from registry.models import (
    InvalidModelError,
    ModelVersion,
    ModelVersionConflictError,
    add_model,
    find_model,
    list_models,
)

EMBEDDINGS = ("/v1/embeddings",)


def add(connection: sa.Connection, name: str, version: str, **given: object) -> ModelVersion:
    pool, engine = str(given.get("pool", "p")), str(given.get("engine", "vllm"))
    endpoints = given.get("endpoints", EMBEDDINGS)
    assert isinstance(endpoints, tuple)
    return add_model(connection, name, version, pool=pool, engine=engine, endpoints=endpoints)


def test_the_version_registered_last_serves(connection: sa.Connection) -> None:
    add(connection, "b", "9")
    add(connection, "a", "2")
    newest = add(connection, "a", "1", pool="q")

    assert find_model(connection, "a") == newest
    assert [(m.name, m.version, m.pool) for m in list_models(connection)] == [
        ("a", "1", "q"),
        ("b", "9", "p"),
    ]


def test_registering_an_old_version_again_makes_it_serve(connection: sa.Connection) -> None:
    first = add(connection, "a", "1")
    second = add(connection, "a", "2")
    assert find_model(connection, "a") == second

    assert add(connection, "a", "1") == first
    assert find_model(connection, "a") == first
    with pytest.raises(ModelVersionConflictError):
        add(connection, "a", "1", pool="q")


@pytest.mark.parametrize("name", ["", "\x00", "x" * 1000, "ü"])
def test_any_text_is_accepted_as_model_name(connection: sa.Connection, name: str) -> None:
    assert find_model(connection, name) is None


@pytest.mark.parametrize(
    "given",
    [
        {"pool": "UPPER"},
        {"pool": "a/b"},
        {"engine": "magic"},
        {"endpoints": ()},
        {"endpoints": ("/v1/nope",)},
    ],
)
def test_invalid_values_are_rejected(connection: sa.Connection, given: dict[str, object]) -> None:
    with pytest.raises(InvalidModelError):
        add(connection, "a", "1", **given)
    with pytest.raises(InvalidModelError):
        add(connection, "a b\x00", "1")
