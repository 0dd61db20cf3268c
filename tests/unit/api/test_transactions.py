"""Goal: the queries of the API that see all tenants are few and listed."""

import re
from collections import Counter
from pathlib import Path

import api

ACROSS_TENANTS = {
    "auth/key_cache.py": {"working_keys"},
    "online/answer/response_cache.py": {"read_response_cache_ttls", "record_cache_hits"},
    "online/admit/model_cache.py": {"list_models", "find_model"},
    "auth/authentication.py": {"authenticate"},  # who is calling is not known yet
    "views/progress_poller.py": {"read_progress"},  # one look for all who follow
}
_CALL = re.compile(r"\brun_across_tenants\(\s*(\w+)")
_BEGINS = re.compile(r"\b(?:engine|_engine)\.(?:begin|connect|raw_connection)\(")


def sources() -> dict[str, str]:
    (root,) = map(Path, api.__path__)
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}


def test_queries_across_tenants_are_listed() -> None:
    found = {
        name: set(_CALL.findall(text))
        for name, text in sources().items()
        if _CALL.search(text) and name != "runtime/database.py"
    }
    assert found == ACROSS_TENANTS


def test_transactions_begin_in_one_module() -> None:
    begins = Counter(name for name, text in sources().items() for _ in _BEGINS.findall(text))
    assert begins == {"runtime/database.py": 1}
