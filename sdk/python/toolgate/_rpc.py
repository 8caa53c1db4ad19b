"""Requests and streams that survive a lost connection and a restart of the service."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import grpc

from toolgate._connection import Server
from toolgate._gen.permission_service_pb2_grpc import PermissionServiceStub
from toolgate._gen.session_service_pb2_grpc import SessionServiceStub
from toolgate._gen.tool_service_pb2_grpc import ToolServiceStub
from toolgate.errors import RequestTimeoutError, UnreachableError, is_cut, request_error

if TYPE_CHECKING:  # Names of types alone: the generated modules do not have them.
    from toolgate._gen.permission_service_pb2_grpc import PermissionServiceAsyncStub
    from toolgate._gen.session_service_pb2_grpc import SessionServiceAsyncStub
    from toolgate._gen.tool_service_pb2_grpc import ToolServiceAsyncStub

log = logging.getLogger("toolgate")

REQUEST_SECONDS = 30.0
"""Time for a request that is no stream, with its retries."""

SILENCE_SECONDS = 60.0
"""Time without a message after which a stream counts as lost: the service sends a heartbeat every 15 s."""

Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)
Message = TypeVar("Message")
Headers = tuple[tuple[str, str], ...]


class Unary(Protocol[Request, Response]):
    """A generated method with one response."""

    def __call__(self, request: Request, /, *, metadata: Headers) -> Awaitable[Response]: ...


class Rpc:
    """The generated stubs over one channel, and the retries."""

    def __init__(self, server: Server, connect_timeout: float) -> None:
        """Opens the channel in the running event loop."""
        self.server = server
        self._connect_timeout = connect_timeout
        self._reached = False
        self._channel = server.open_channel()
        # The stubs of an asynchronous channel are asynchronous; only their types say so.
        self.tools: ToolServiceAsyncStub = ToolServiceStub(self._channel)
        self.sessions: SessionServiceAsyncStub = SessionServiceStub(self._channel)
        self.permissions: PermissionServiceAsyncStub = PermissionServiceStub(self._channel)

    async def close(self) -> None:
        """Ends the channel and all streams on it."""
        await self._channel.close()

    async def unary(
        self, method: Unary[Request, Response], request: Request, *, seconds: float | None = REQUEST_SECONDS
    ) -> Response:
        """Sends a request until a response arrives. It must be one that may be repeated."""
        retries = Retries(self)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        response = await method(request, metadata=self.server.metadata)
                        self._reached = True
                        return response
                    except grpc.aio.AioRpcError as error:
                        await retries.pause(error)
        except TimeoutError as error:
            raise RequestTimeoutError(self.server.url, seconds or 0) from error

    async def stream(
        self, open_stream: Callable[[], object], is_last: Callable[[Message], bool]
    ) -> AsyncGenerator[Message]:
        """Yields the messages of a stream up to the last one. `open_stream` is called again after each lost connection."""
        retries = Retries(self)
        while True:
            stream = cast("grpc.aio.UnaryStreamCall[object, Message]", open_stream())
            try:
                while (message := await _read(stream)) is not None:
                    self._reached = True
                    retries.reset()
                    yield message
                    if is_last(message):
                        return
                await retries.pause(None)
            except grpc.aio.AioRpcError as error:
                await retries.pause(error)
            finally:
                stream.cancel()

    def refuse_unreached(self, waited: float, detail: str) -> None:
        """Raises if the service was never reached in the time for it: then its address is wrong, or it was not started."""
        if not self._reached and waited >= self._connect_timeout:
            raise UnreachableError(self.server.url, detail)


class Retries:
    """Pauses between the attempts of one request or stream, from 0.1 s up to 2 s."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._attempt = 0
        self._waited = 0.0

    def reset(self) -> None:
        """Begins again with short pauses: a message arrived."""
        self._attempt = 0

    async def pause(self, error: grpc.aio.AioRpcError | None) -> None:
        """Waits before the next attempt; raises if the error is a refusal. None: the service ended the stream early."""
        if error is not None and not is_cut(error):
            raise request_error(error) from error
        detail = (error.details() or error.code().name) if error else "it ended the stream"
        self._rpc.refuse_unreached(self._waited, detail)
        seconds = min(0.1 * 2**self._attempt, 2.0) * random.uniform(0.75, 1.25)
        log.info("connection to %s lost (%s); trying again in %.1f s", self._rpc.server.url, detail, seconds)
        await asyncio.sleep(seconds)
        self._attempt += 1
        self._waited += seconds


async def _read(stream: "grpc.aio.UnaryStreamCall[object, Message]") -> Message | None:
    """Returns the next message; None at the end of the stream, and after a silence that no living service keeps."""
    try:
        async with asyncio.timeout(SILENCE_SECONDS):
            message = await stream.read()
    except TimeoutError:
        return None
    return None if message is grpc.aio.EOF else cast(Message, message)
