"""Which calls are answered as streams."""

from typing import Final

STREAMED_ENDPOINTS: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints that have streams. At all others `stream` is a field that nobody knows."""
