"""Goal: one engine can run all items of a job, and each error names the line of its name."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.limits import ERROR_LINES_MAX
from jobs.input.line_checks import ErrorCode
from jobs.validation.model_rule import NAMES_MAX, ModelRule, PinnedModels
from jobs.validation.pinned_models import model_columns
from registry.models import ModelVersion

EMBED, CHAT = "/v1/embeddings", "/v1/chat/completions"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASE = ModelVersion("base", "1" * 64, "pool", "vllm", (CHAT, EMBED), NOW)
LAW = replace(BASE, name="law", version="2" * 64, base_version=BASE.version, endpoints=(CHAT,))
MED = replace(LAW, name="med", version="3" * 64)
NEWER = replace(BASE, version="4" * 64)
MODELS = {
    "base": BASE,
    "prod": BASE,
    f"base@{BASE.version[:12]}": BASE,
    "law": LAW,
    "med": MED,
    "newer": NEWER,
    "elsewhere": replace(BASE, pool="pool-2"),
    "old": replace(BASE, retired_at=NOW),
}


def errors(
    *names: str,
    endpoint: str = CHAT,
    pinned: PinnedModels | None = None,
    allows_several: bool = True,
) -> list[tuple[int, ErrorCode]]:
    rule = ModelRule(endpoint, MODELS.get, pinned, allows_several=allows_several)
    found = [rule.error(name, number) for number, name in enumerate(names, 1)]
    assert all(error.param == "body.model" for error in found if error)
    return [(error.line or 0, error.code) for error in found if error]


def test_a_model_its_adapters_aliases_and_pinned_forms_fit_together() -> None:
    assert errors("law", "prod", "med", "base", f"base@{BASE.version[:12]}", "law") == []


def test_several_names_and_adapters_are_refused_until_every_role_is_upgraded() -> None:
    off = ErrorCode.SEVERAL_MODELS_OFF
    assert errors("prod", "prod", allows_several=False) == []
    assert errors("base", "prod", "law", allows_several=False) == [(2, off), (3, off)]
    assert errors("law", "base", allows_several=False) == [(1, off)]
    assert errors("base", "newer", allows_several=False) == [(2, ErrorCode.MODEL_MISMATCH)]
    pinned = PinnedModels({"base": BASE.version, "law": LAW.version}, "pool", BASE.version)
    assert errors("law", "med", "base", pinned=pinned, allows_several=False) == [(2, off)]


def test_the_names_of_a_version_share_prefixes_and_adapters_do_not() -> None:
    rule = ModelRule(CHAT, MODELS.get)
    names = ["prod", "base", f"base@{BASE.version[:12]}", "law", "med"]
    assert [rule.error(name, 1) for name in names] == [None] * 5
    salts = [rule.prefix_salt(name) for name in names]
    assert salts[:3] == [0, 0, 0]
    assert len(set(salts)) == 3


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("newer", ErrorCode.MODEL_MISMATCH),
        ("elsewhere", ErrorCode.MODEL_MISMATCH),
        ("absent", ErrorCode.MODEL_NOT_FOUND),
        ("old", ErrorCode.MODEL_RETIRED),
    ],
)
def test_each_line_with_another_name_has_its_error(name: str, code: ErrorCode) -> None:
    assert errors("base", name, "law", name) == [(2, code), (4, code)]


def test_a_name_that_does_not_serve_the_endpoint_is_reported_once() -> None:
    assert errors("base", "law", "law", "med", endpoint=EMBED) == [
        (2, ErrorCode.ENDPOINT_NOT_SUPPORTED),
        (4, ErrorCode.ENDPOINT_NOT_SUPPORTED),
    ]


def test_an_appended_file_may_add_names_that_fit_what_the_job_pinned() -> None:
    # The job keeps "newer" as what it meant then; the registry is not asked for it.
    pinned = PinnedModels({"newer": BASE.version}, "pool", BASE.version)
    assert errors("newer", "law", "elsewhere", pinned=pinned) == [(3, ErrorCode.MODEL_MISMATCH)]
    pinned = PinnedModels({"newer": NEWER.version}, "pool", NEWER.version)
    assert errors("law", "newer", pinned=pinned) == [(1, ErrorCode.MODEL_MISMATCH)]


def test_text_of_a_legacy_version_does_not_tell_the_model() -> None:
    small = replace(BASE, name="small", version="1")
    models = {"small": small, "alias": small, "large": replace(small, name="large")}
    rule = ModelRule(CHAT, models.get)
    found = [rule.error(name, 1) for name in ("small", "alias", "large")]
    assert [error and error.code for error in found] == [None, None, ErrorCode.MODEL_MISMATCH]
    appended = ModelRule(CHAT, models.get, PinnedModels({"alias": "1"}, "pool", "1"))
    found = [appended.error(name, 1) for name in ("alias", "large")]
    assert [error and error.code for error in found] == [None, ErrorCode.MODEL_MISMATCH]


def test_names_of_a_job_are_limited() -> None:
    rule = ModelRule(CHAT, lambda name: replace(BASE, requested_name=name))
    found = [rule.error(f"m{n}", n) for n in range(NAMES_MAX + 2)]
    assert [error.code for error in found if error] == [ErrorCode.TOO_MANY_MODELS] * 2
    pinned = PinnedModels(dict.fromkeys(rule.names, BASE.version), "pool", BASE.version)
    error = ModelRule(CHAT, MODELS.get, pinned).error("base", 1)
    assert error is not None
    assert error.code is ErrorCode.TOO_MANY_MODELS


def test_refused_names_are_looked_up_once_and_up_to_a_limit() -> None:
    asked: list[str] = []

    def find(name: str) -> ModelVersion | None:
        asked.append(name)
        return MODELS.get(name)

    rule = ModelRule(CHAT, find)
    assert rule.error("base", 1) is None
    for number in range(3 * ERROR_LINES_MAX):
        assert rule.error(f"absent-{number % (2 * ERROR_LINES_MAX)}", number) is not None
    assert len(asked) == 1 + ERROR_LINES_MAX


def test_columns_of_a_job_keep_the_base_version_of_an_adapter() -> None:
    assert model_columns({"prod": BASE}) == {
        "model": "prod", "model_version": BASE.version, "pool": "pool"
    }  # fmt: skip
    assert model_columns({"law": LAW}) == {
        "model": "law",
        "model_version": LAW.version,
        "pool": "pool",
        "models": {"law": {"version": LAW.version, "base_version": BASE.version}},
    }
    several = model_columns({"base": BASE, "law": LAW})
    assert (several["model"], several["model_version"]) == ("base", BASE.version)
    assert several["models"] == {
        "base": {"version": BASE.version, "base_version": ""},
        "law": {"version": LAW.version, "base_version": BASE.version},
    }
