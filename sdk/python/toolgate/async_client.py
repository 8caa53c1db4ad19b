"""The caller's side for asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack
from uuid import uuid4

from grpc import StatusCode
from grpc.aio import UsageError

from toolgate._connection import find_server
from toolgate._gen.event_pb2 import SessionEvent
from toolgate._gen.permission_pb2 import PermissionRule, QuestionAnswer, Shown
from toolgate._gen.permission_service_pb2 import (
    GetPermissionRequest,
    ListPermissionsRequest,
    WatchPermissionsRequest,
    WatchPermissionsResponse,
)
from toolgate._gen.session_service_pb2 import CloseSessionRequest, CreateSessionRequest, Session
from toolgate._gen.tool_pb2 import PermissionReply, PermissionRequest, PermissionResponse, ToolPart
from toolgate._gen.tool_service_pb2 import (
    ByteRange,
    CallToolRequest,
    CancelToolRequest,
    ExecuteToolRequest,
    ExecuteToolResponse,
    GetToolPartRequest,
    ListToolsRequest,
    ReadToolOutputRequest,
    ToolDefinition,
)
from toolgate._json import to_struct
from toolgate._rpc import REQUEST_SECONDS, Rpc
from toolgate.errors import CallError, RequestError, ToolgateError, WaitTimeoutError
from toolgate.results import CallResult

Reply = Literal["once", "always", "reject"]
"""Approves this call, approves and saves a grant, or refuses."""

_REPLIES: dict[Reply, PermissionReply.ValueType] = {
    "once": PermissionReply.PERMISSION_REPLY_ONCE,
    "always": PermissionReply.PERMISSION_REPLY_ALWAYS,
    "reject": PermissionReply.PERMISSION_REPLY_REJECT,
}

_WAIT_MS = 60_000
"""Time that one request waits for the end of its call."""

_ABORT_SECONDS = 10.0
"""Time to cancel the call of a task that was cancelled."""

_SHOWN = {None: Shown.SHOWN_UNKNOWN, "whole": Shown.SHOWN_WHOLE, "partial": Shown.SHOWN_PARTIAL}


class CallOptions(TypedDict, total=False):
    """Options of a call. With `session` and `call_id` of the host, a call that is sent again attaches to the first."""

    session: str
    """A session id (`ses…`), created if it does not exist. Default: one session of this client."""
    call_id: str
    """The call's name in its session. Default: a random one."""
    message_id: str
    """The message of the host that contains the call."""
    agent: str
    """The agent that calls. Default: that of the session."""
    metadata: Mapping[str, Any]
    """Data that is stored with the call."""
    run_timeout: float
    """Seconds for which the tool may run, without the wait for permission. Default: the tool's."""
    queue_timeout: float
    """Seconds for which the call of a worker's tool waits for a worker. Default: the tool's, or 60."""
    provider: str
    """The provider of the calling model."""
    model: str
    """The calling model."""
    definition_id: str
    """The definition that the model was shown; a tool that has changed since ends the call STALE_TOOL."""


class ReplyOptions(TypedDict, total=False):
    """Details of an answer to a permission request."""

    message: str
    """Feedback for the model, with `reject`."""
    offer_id: str
    """The offer to save, with `always`. Default: the first one, which is the narrowest."""
    expires: float
    """End of the saved grant in ms since the epoch, with `always`."""
    input: Mapping[str, Any]
    """Other arguments for the call, with `once`; they are evaluated again."""
    answers: Sequence[Sequence[str]]
    """Values for each question of the request, with `once`."""
    whole_call: bool
    """Answers also the open requests of the call that were opened together with this one."""
    shown: Literal["whole", "partial"]
    """What a person saw of the request: all of `view` with the texts of its files, or a part. Default: recorded as unknown."""


class AsyncClient:
    """A connection to a service: makes calls, follows them, and answers permission requests. Use it in one event loop."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, ca: str | None = None, connect_timeout: float = 10.0
    ) -> None:
        """Finds the service by TOOLGATE_URL, TOOLGATE_TOKEN and TOOLGATE_CA where nothing is given.

        `connect_timeout` is the time in seconds to reach the service for the first time. Once reached, a service that is
        away is waited for: without limit by `call` and `stream`, 30 s by other requests.
        """
        self._server = find_server(url, token, ca)
        self._connect_timeout = connect_timeout
        self._opened: Rpc | None = None
        self._default_session = f"ses_{uuid4().hex}"
        self._stores: dict[str, str] = {}
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def rpc(self) -> Rpc:
        """The generated stubs, for requests that have no method here."""
        if self._opened is None:
            self._opened = Rpc(self._server, self._connect_timeout)
        return self._opened

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection, after the cancels of aborted calls. Other calls go on."""
        if self._aborts:
            await asyncio.wait(self._aborts)
        if self._opened is not None:
            await self._opened.close()

    async def call(
        self,
        tool: str,
        input: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        cancel_on_abort: bool = False,
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """Runs a tool and returns its result, also across lost connections and restarts of the service.

        Raises CallError for a call that was refused or failed, and RequestError if the service did not accept it. If it has
        not ended within `timeout` seconds (default: no limit), WaitTimeoutError; the call goes on then, and also if this
        task is cancelled, unless `cancel_on_abort` is true. An integer beyond 2^53 in `input` is a ValueError: pass it as text.
        """
        options = _with_ids(options, self._default_session)
        session_id, call_id = options["session"], options["call_id"]
        request = CallToolRequest(**_fields(tool, input or {}, options), wait_ms=_WAIT_MS)
        try:
            async with asyncio.timeout(timeout):
                request.expected_store_id = await self._store_of(session_id)
                with _naming(request):
                    while True:
                        part = (await self.rpc.unary(self.rpc.tools.CallTool, request, seconds=None)).part
                        if part.HasField("completed"):
                            return CallResult(part)
                        if part.HasField("error"):
                            raise CallError(part)
        except TimeoutError as error:
            raise WaitTimeoutError(session_id, call_id, timeout or 0) from error
        except asyncio.CancelledError:
            if cancel_on_abort:
                abort = asyncio.create_task(self._abort(session_id, call_id))
                self._aborts.add(abort)
                abort.add_done_callback(self._aborts.discard)
                await asyncio.shield(abort)
            raise

    async def stream(
        self, tool: str, input: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[SessionEvent]:
        """Runs a tool and yields its events, each once, up to the terminal state, which is the last one.

        Lost connections and restarts of the service do not show. To leave early is not to cancel: the call goes on.
        """
        options = _with_ids(options, self._default_session)
        request = ExecuteToolRequest(**_fields(tool, input or {}, options))
        request.expected_store_id = await self._store_of(request.session_id)

        def open_stream() -> object:
            return self.rpc.tools.ExecuteTool(request, metadata=self._server.metadata)

        def is_last(response: ExecuteToolResponse) -> bool:
            part = response.event.part
            return part.call_id == request.call_id and part.WhichOneof("state") in ("completed", "error")

        with _naming(request):
            async for response in self.rpc.stream(open_stream, is_last):
                request.after_seq = max(request.after_seq, response.last_seq)
                request.expected_store_id = request.expected_store_id or response.store_id
                if response.HasField("event"):
                    yield response.event

    async def cancel(self, session: str, call_id: str, message: str = "") -> ToolPart:
        """Ends a call with CANCELLED, unless it has ended; returns it."""
        request = CancelToolRequest(session_id=session, call_id=call_id, message=message)
        return (await self.rpc.unary(self.rpc.tools.CancelTool, request)).part

    async def get(self, session: str, call_id: str) -> ToolPart:
        """Returns the current state of a call."""
        request = GetToolPartRequest(session_id=session, call_id=call_id)
        return (await self.rpc.unary(self.rpc.tools.GetToolPart, request)).part

    async def read_output(self, session: str, output: str) -> bytes:
        """Returns a whole output by its name, such as `toolgate-output:…` in the metadata of a truncated result."""
        data = b""
        while True:
            request = ReadToolOutputRequest(session_id=session, output=output, bytes=ByteRange(offset=len(data)))
            response = await self.rpc.unary(self.rpc.tools.ReadToolOutput, request)
            data += response.data
            if response.end or not response.data:
                return data

    async def tools(
        self, *, session: str = "", agent: str = "", provider: str = "", model: str = ""
    ) -> list[ToolDefinition]:
        """Returns the tools that an agent may see, with schemas that suit its model."""
        request = ListToolsRequest(session_id=session, agent=agent, provider_id=provider, model_id=model)
        tools: list[ToolDefinition] = []
        while True:
            page = await self.rpc.unary(self.rpc.tools.ListTools, request)
            tools.extend(page.tools)
            if not page.next_page_token:
                return tools
            request.page_token = page.next_page_token

    async def create_session(
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
        """Creates a session, or returns the one of that id."""
        request = CreateSessionRequest(
            session_id=session_id or f"ses_{uuid4().hex}",
            workspace=workspace,
            agent=agent,
            parent_session_id=parent,
            title=title,
            metadata=to_struct(metadata) if metadata else None,
            rules=rules,
        )
        return await self._create(request, REQUEST_SECONDS)

    async def close_session(self, session: str) -> Session:
        """Refuses new calls in a session and its descendants, and cancels those that are open."""
        response = await self.rpc.unary(self.rpc.sessions.CloseSession, CloseSessionRequest(session_id=session))
        return response.session

    async def asks(self, session: str = "") -> list[PermissionRequest]:
        """Returns the open permission requests, oldest first: of a session and its descendants, or all that this token sees."""
        request = ListPermissionsRequest(session_id=session)
        found: list[PermissionRequest] = []
        while True:
            response = await self.rpc.unary(self.rpc.permissions.ListPermissions, request)
            found.extend(response.permissions)
            if not response.next_page_token:
                return found
            request.page_token = response.next_page_token

    async def watch_asks(self, session: str = "") -> AsyncGenerator[PermissionRequest]:
        """Yields the permission requests that are open and those that are opened, each once, without end."""
        request = WatchPermissionsRequest(session_id=session)
        seen: set[str] = set()

        def open_stream() -> object:
            return self.rpc.permissions.WatchPermissions(request, metadata=self._server.metadata)

        def is_last(_response: WatchPermissionsResponse) -> bool:
            return False

        async for response in self.rpc.stream(open_stream, is_last):
            event = response.event
            if event.HasField("permission_settled"):
                seen.discard(event.permission_settled.permission_id)
            if event.HasField("permission_asked") and event.permission_asked.id not in seen:
                seen.add(event.permission_asked.id)
                yield event.permission_asked

    async def reply(self, ask: PermissionRequest | str, reply: Reply, **options: Unpack[ReplyOptions]) -> None:
        """Answers a permission request, or one by its id. Returns when this answer is recorded as the one that counts.

        The answer is bound to the request as it was shown: if something else would run by now, it fails with ASK_CHANGED.
        """
        if isinstance(ask, str):
            found = await self.rpc.unary(self.rpc.permissions.GetPermission, GetPermissionRequest(permission_id=ask))
            ask = found.permission
        changed = options.get("input")
        response = PermissionResponse(
            session_id=ask.session_id,
            permission_id=ask.id,
            reply=_REPLIES[reply],
            reply_id=uuid4().hex,
            expected_digest=ask.digest,
            message=options.get("message", ""),
            offer_id=options.get("offer_id", ""),
            expires=options.get("expires", 0),
            input=None if changed is None else to_struct(changed),
            answers=[QuestionAnswer(values=values) for values in options.get("answers", ())],
            whole_call=options.get("whole_call", False),
            shown=_SHOWN[options.get("shown")],
        )
        await self.rpc.unary(self.rpc.permissions.RespondToPermission, response)

    async def _abort(self, session: str, call_id: str) -> None:
        """Cancels the call of a cancelled task. Its request may still be under way, so one that is not found is tried again."""
        # The client may be closed by now; the task is cancelled in any case.
        with contextlib.suppress(ToolgateError, UsageError, TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                for pause in (0.1, 0.2, 0.4, 0.8, None):
                    try:
                        await self.cancel(session, call_id)
                        return
                    except RequestError as error:
                        if error.code != StatusCode.NOT_FOUND or pause is None:
                            raise
                        await asyncio.sleep(pause)

    async def _store_of(self, session: str) -> str:
        """Creates the session where it is missing. Its store makes the first request of a call safe to repeat."""
        if session not in self._stores:
            try:
                await self._create(CreateSessionRequest(session_id=session), None)
            except RequestError as error:
                if error.metadata.get("field") != "parent_session_id":
                    raise
                self._stores[session] = ""  # It exists, below another session.
        return self._stores[session]

    async def _create(self, request: CreateSessionRequest, seconds: float | None) -> Session:
        response = await self.rpc.unary(self.rpc.sessions.CreateSession, request, seconds=seconds)
        self._stores[response.session.id] = response.store_id
        return response.session


def _with_ids(options: CallOptions, default_session: str) -> CallOptions:
    return {"session": default_session, "call_id": f"call_{uuid4().hex}", **options}


@contextlib.contextmanager
def _naming(request: CallToolRequest | ExecuteToolRequest) -> Generator[None]:
    """Names the call in a refusal."""
    try:
        yield
    except RequestError as error:
        error.session_id, error.call_id = request.session_id, request.call_id
        raise


def _fields(tool: str, input: Mapping[str, Any], options: CallOptions) -> dict[str, Any]:
    """Returns the fields that the requests of a call have in common."""
    metadata = options.get("metadata")
    queue_timeout = options.get("queue_timeout")
    return {
        "session_id": options["session"],
        "call_id": options["call_id"],
        "message_id": options.get("message_id", ""),
        "agent": options.get("agent", ""),
        "tool": tool,
        "input": to_struct(input),
        "metadata": None if metadata is None else to_struct(metadata),
        "timeout_ms": round(options.get("run_timeout", 0) * 1000),
        "queue_ms": None if queue_timeout is None else round(queue_timeout * 1000),
        "provider_id": options.get("provider", ""),
        "model_id": options.get("model", ""),
        "definition_id": options.get("definition_id", ""),
    }
