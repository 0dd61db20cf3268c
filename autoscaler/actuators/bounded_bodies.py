"""Reads bodies of HTTP answers up to a limit."""

import aiohttp

from autoscaler.actuators.actuator import UnexpectedAnswerError


async def read_bounded(stream: aiohttp.StreamReader, bytes_max: int) -> bytes:
    """Return the whole body of an answer. Raises UnexpectedAnswerError if it is too large."""
    parts = bytearray()
    async for part in stream.iter_chunked(64 * 1024):
        parts += part
        if len(parts) > bytes_max:
            raise UnexpectedAnswerError("The answer is too large.")
    return bytes(parts)
