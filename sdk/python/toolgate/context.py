"""The context of a body: what it knows of its call, and what it may request."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from toolgate._gen.tool_pb2 import FilePart
from toolgate._gen.worker_pb2 import (
    WorkerAnswer,
    WorkerAsk,
    WorkerBodyRequest,
    WorkerChildCall,
    WorkerChildCalls,
    WorkerEndedCall,
    WorkerStart,
    WorkerState,
)
from toolgate._json import from_struct, from_value, to_struct, to_value

T = TypeVar("T")

MAX_PIECE_BYTES = 262_144
"""Largest piece of output in one message."""


class CallStopped(BaseException):
    """Raised in a body whose call is over: it was cancelled, refused or timed out. Do not catch it without raising it again."""


class BodyPort(Protocol):
    """The way from a body to its worker. All methods may be called from any thread."""

    def progress(self, title: str | None, metadata: Mapping[str, Any] | None) -> None:
        """Replaces what watchers see."""

    def write(self, data: bytes, blob: int = 0) -> Future[None]:
        """Writes output; done when more may be written."""

    def request(self, request: WorkerBodyRequest) -> Future[WorkerAnswer]:
        """Sends a request; done with its answer, or CallStopped."""


@dataclass(frozen=True)
class ChildResult:
    """The outcome of a call that a body made."""

    call_id: str
    completed: bool
    """False: it failed or was refused, and `text` is the error."""
    title: str
    text: str
    metadata: dict[str, Any]
    attachments: list[FilePart]
    command_failure: str
    """The failure of a completed call's command, such as `exit code 3`."""
    may_have_effects: bool


class BodyContext:
    """Common part of both kinds of contexts."""

    def __init__(self, start: WorkerStart, port: BodyPort) -> None:
        call = start.call
        self.session_id = call.session_id
        self.root_session_id = call.root_session_id
        self.message_id = call.message_id
        self.call_id = call.call_id
        self.agent = call.agent
        self.workspace = call.workspace
        self.tool = call.tool
        self.definition_id = call.definition_id
        self.provider = call.provider_id
        self.model = call.model_id
        self.extra = from_struct(call.metadata)
        """The caller's metadata, as far as the tool's `metadata_keys` let it through."""
        self.attempt = start.attempt
        """1, or more for an idempotent tool that runs again."""
        self.detail = start.detail
        """That of the plan."""
        self.timeout = start.timeout_ms / 1000
        """Seconds for which the body may run; 0 if it is not limited here."""
        self.traceparent = start.traceparent
        self.tracestate = start.tracestate
        self._port = port
        self._stopped = threading.Event()

    @property
    def cancelled(self) -> bool:
        """The call is over: stop and clean up."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raises CallStopped if the call is over. Call it between the steps of a long body."""
        if self.cancelled:
            raise CallStopped("the call is over")

    def metadata(self, title: str | None = None, metadata: Mapping[str, Any] | None = None) -> None:
        """Replaces the title and the metadata that user interfaces show."""
        self._port.progress(title, metadata)

    def stop(self) -> None:
        """Marks the call as over; the worker calls it."""
        self._stopped.set()


class Context(BodyContext):
    """The context of an `async def` body."""

    def __init__(self, start: WorkerStart, port: BodyPort) -> None:
        super().__init__(start, port)
        self.abort = asyncio.Event()
        """Set when the call is over."""
        self.state = State(self)
        """Values that tools store for the session."""
        self._loop = asyncio.get_running_loop()

    async def output(self, data: str | bytes) -> None:
        """Writes output that watchers see at once. Waits while too much of it is not stored yet."""
        for piece in pieces(data):
            await asyncio.wrap_future(self._port.write(piece))

    async def ask(
        self,
        permission: str,
        patterns: Sequence[str],
        metadata: Mapping[str, Any] | None = None,
        always: Sequence[str] = (),
    ) -> None:
        """Asks for a permission. If it is refused, the call ends here."""
        await self.request(ask_request(permission, patterns, metadata, always))

    async def calls(self, calls: Sequence[tuple[str, Mapping[str, Any]]], *, atomic: bool = False) -> list[ChildResult]:
        """Makes calls, each evaluated like any other; only of tools that the worker's token may call."""
        return child_results(await self.request(calls_request(calls, atomic)))

    async def request(self, request: WorkerBodyRequest) -> WorkerAnswer:
        """Sends a request of the contract and returns its answer; a problem is a ToolFailure."""
        return answered(await asyncio.wrap_future(self._port.request(request)))

    def stop(self) -> None:
        super().stop()
        self._loop.call_soon_threadsafe(self.abort.set)


class SyncContext(BodyContext):
    """The context of a `def` body, which runs in a thread."""

    def __init__(self, start: WorkerStart, port: BodyPort) -> None:
        super().__init__(start, port)
        self.abort = self._stopped
        """Set when the call is over."""
        self.state = SyncState(self)
        """Values that tools store for the session."""

    def output(self, data: str | bytes) -> None:
        """See Context.output."""
        for piece in pieces(data):
            self.check()
            self._port.write(piece).result()

    def ask(
        self,
        permission: str,
        patterns: Sequence[str],
        metadata: Mapping[str, Any] | None = None,
        always: Sequence[str] = (),
    ) -> None:
        """See Context.ask."""
        self.request(ask_request(permission, patterns, metadata, always))

    def calls(self, calls: Sequence[tuple[str, Mapping[str, Any]]], *, atomic: bool = False) -> list[ChildResult]:
        """See Context.calls."""
        return child_results(self.request(calls_request(calls, atomic)))

    def request(self, request: WorkerBodyRequest) -> WorkerAnswer:
        """See Context.request."""
        self.check()
        return answered(self._port.request(request).result())


class State:
    """Values of at most 64 KiB that tools store for a session, by name."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def get(self, name: str) -> Any:
        """Returns a value; None if there is none."""
        return state_value(await self._context.request(WorkerBodyRequest(get_state=name)))

    async def set(self, name: str, value: Any) -> None:
        """Stores a value."""
        await self._context.request(WorkerBodyRequest(set_state=WorkerState(name=name, value=to_value(value))))


class SyncState:
    """See State."""

    def __init__(self, context: SyncContext) -> None:
        self._context = context

    def get(self, name: str) -> Any:
        """See State.get."""
        return state_value(self._context.request(WorkerBodyRequest(get_state=name)))

    def set(self, name: str, value: Any) -> None:
        """See State.set."""
        self._context.request(WorkerBodyRequest(set_state=WorkerState(name=name, value=to_value(value))))


class RequestProblem(Exception):
    """A request of a body that cannot be fulfilled, such as a call of a tool that the worker's token may not call."""


def pieces(data: str | bytes) -> list[bytes]:
    """Splits output into pieces that fit a message."""
    encoded = valid_text(data).encode() if isinstance(data, str) else data
    return [encoded[at : at + MAX_PIECE_BYTES] for at in range(0, len(encoded), MAX_PIECE_BYTES)]


def valid_text(text: str) -> str:
    """Replaces what is no character, such as the bytes of a file's name that are no UTF-8: no message can have it."""
    return text.encode(errors="replace").decode()


def ask_request(
    permission: str, patterns: Sequence[str], metadata: Mapping[str, Any] | None, always: Sequence[str]
) -> WorkerBodyRequest:
    details = None if metadata is None else to_struct(metadata)
    return WorkerBodyRequest(ask=WorkerAsk(permission=permission, patterns=patterns, always=always, metadata=details))


def calls_request(calls: Sequence[tuple[str, Mapping[str, Any]]], atomic: bool) -> WorkerBodyRequest:
    children = [WorkerChildCall(tool=tool, input=to_struct(input)) for tool, input in calls]
    return WorkerBodyRequest(calls=WorkerChildCalls(calls=children, atomic=atomic))


def answered(answer: WorkerAnswer) -> WorkerAnswer:
    if answer.HasField("problem"):
        raise RequestProblem(answer.problem)
    return answer


def state_value(answer: WorkerAnswer) -> Any:
    return from_value(answer.state) if answer.HasField("state") else None


def child_results(answer: WorkerAnswer) -> list[ChildResult]:
    return [_child_result(call) for call in answer.calls.calls]


def _child_result(call: WorkerEndedCall) -> ChildResult:
    return ChildResult(
        call_id=call.call_id,
        completed=call.completed,
        title=call.title,
        text=call.text,
        metadata=from_struct(call.metadata),
        attachments=list(call.attachments),
        command_failure=call.command_failure,
        may_have_effects=call.may_have_effects,
    )
