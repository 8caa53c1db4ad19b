"""The caller's side for programs without an event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from toolgate._gen.event_pb2 import SessionEvent
from toolgate._gen.permission_pb2 import PermissionRule
from toolgate._gen.session_service_pb2 import Session
from toolgate._gen.tool_pb2 import PermissionRequest, ToolPart
from toolgate._gen.tool_service_pb2 import ToolDefinition
from toolgate.async_client import AsyncClient, CallOptions, Reply, ReplyOptions
from toolgate.errors import ToolgateError
from toolgate.results import CallResult

T = TypeVar("T")


class Client:
    """A connection to a service, as AsyncClient, with methods that block. Threads may share it."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, ca: str | None = None, connect_timeout: float = 10.0
    ) -> None:
        """See AsyncClient."""
        self._client = AsyncClient(url, token, ca=ca, connect_timeout=connect_timeout)
        self._is_closed = False
        self._entering = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toolgate-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and what other threads wait for. Calls go on, except those with `cancel_on_abort`."""
        with self._entering:
            if self._is_closed:
                return
            self._is_closed = True
            ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ended.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(
        self,
        tool: str,
        input: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """See AsyncClient.call. Ctrl-C counts as a cancelled task."""
        return self._run(self._client.call(tool, input, timeout=timeout, cancel_on_abort=cancel_on_abort, **options))

    def stream(
        self, tool: str, input: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Generator[SessionEvent]:
        """See AsyncClient.stream."""
        return self._iterate(self._client.stream(tool, input, **options))

    def cancel(self, session: str, call_id: str, message: str = "") -> ToolPart:
        """See AsyncClient.cancel."""
        return self._run(self._client.cancel(session, call_id, message))

    def get(self, session: str, call_id: str) -> ToolPart:
        """See AsyncClient.get."""
        return self._run(self._client.get(session, call_id))

    def read_output(self, session: str, output: str) -> bytes:
        """See AsyncClient.read_output."""
        return self._run(self._client.read_output(session, output))

    def tools(self, *, session: str = "", agent: str = "", provider: str = "", model: str = "") -> list[ToolDefinition]:
        """See AsyncClient.tools."""
        return self._run(self._client.tools(session=session, agent=agent, provider=provider, model=model))

    def create_session(
        self,
        session_id: str | None = None,
        *,
        workspace: str = "",
        agent: str = "",
        parent: str = "",
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        rules: Sequence[PermissionRule] = (),
    ) -> Session:
        """See AsyncClient.create_session."""
        return self._run(
            self._client.create_session(
                session_id,
                workspace=workspace,
                agent=agent,
                parent=parent,
                title=title,
                metadata=metadata,
                rules=rules,
            )
        )

    def close_session(self, session: str) -> Session:
        """See AsyncClient.close_session."""
        return self._run(self._client.close_session(session))

    def asks(self, session: str = "") -> list[PermissionRequest]:
        """See AsyncClient.asks."""
        return self._run(self._client.asks(session))

    def watch_asks(self, session: str = "") -> Generator[PermissionRequest]:
        """See AsyncClient.watch_asks."""
        return self._iterate(self._client.watch_asks(session))

    def reply(self, ask: PermissionRequest | str, reply: Reply, **options: Unpack[ReplyOptions]) -> None:
        """See AsyncClient.reply."""
        self._run(self._client.reply(ask, reply, **options))

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            # The connection stays until aborted calls are cancelled.
            await asyncio.wait(self._tasks)
        await self._client.close()

    async def _track(self, work: Coroutine[Any, Any, T]) -> T:
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await work

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T] | None:
        """Starts work in the thread of the event loop; returns nothing once the client was closed."""
        # Closing takes its turn as well: the loop would stop before work that comes later, which would never end.
        with self._entering:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(self._track(work), self._loop)
        work.close()
        return None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        if future is None:
            raise ToolgateError("this client was closed", "create another one")
        try:
            return future.result()
        except BaseException:
            future.cancel()  # After Ctrl-C the work would go on in its thread.
            raise

    def _iterate(self, items: AsyncGenerator[T]) -> Generator[T]:
        """Yields the items; ends without an error when another thread closes this client."""

        async def following() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        try:
            while (found := self._run(following())) is not None:
                yield found[0]
        except (CancelledError, ToolgateError):
            if not self._is_closed:
                raise
        finally:
            if (closing := self._submit(items.aclose())) is not None:
                closing.result()
