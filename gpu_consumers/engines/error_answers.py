"""The OpenAI error envelope as an answer; messages name the mistake, never the item's text."""

import msgspec

from gpu_consumers.engines.engine import Answer


def error_answer(
    status_code: int,
    message: str,
    *,
    type_: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> Answer:
    """Build `{"error": {...}}` with all four keys present, as clients expect."""
    error = {"message": message, "type": type_, "param": param, "code": code}
    return Answer(status_code, msgspec.json.encode({"error": error}))


def unknown_endpoint(endpoint: str) -> Answer:
    """Say that this engine has no such route."""
    return error_answer(404, f"This engine does not serve {endpoint}.", code="unknown_endpoint")


def stream_refused() -> Answer:
    """Say that an item has one answer, not a stream."""
    return error_answer(400, "A job item cannot stream.", param="stream", code="stream_unsupported")


def item_timed_out(limit_s: float | None) -> Answer:
    """Say that the item ran longer than one item may."""
    message = f"The item did not finish within {limit_s:g} s."
    return error_answer(504, message, type_="timeout_error", code="item_timeout")
