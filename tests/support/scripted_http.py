"""An HTTP/1.1 server that sends the same bytes in answer to every call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HEAD = b"HTTP/1.1 200 OK\r\n"
STREAM_HEAD = HEAD + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def response(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def scripted_http(*parts: bytes) -> AsyncIterator[str]:
    """Answer each call, which has a body of two bytes, with `parts`; yield the URL.

    Each part is sent separately; an empty last part closes the connection.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.002)  # the parts arrive apart
                if not parts[-1]:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
