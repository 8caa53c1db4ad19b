"""Runs one body, in the event loop or in a thread, and makes its result."""

import asyncio
import contextvars
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value
from pydantic import BaseModel, TypeAdapter, ValidationError

from toolgate._gen.worker_pb2 import (
    WorkerAttachment,
    WorkerCompleted,
    WorkerFailed,
    WorkerFailure,
    WorkerResult,
    WorkerStart,
)
from toolgate._json import from_struct, to_struct, to_value
from toolgate.context import (
    BodyContext,
    BodyPort,
    CallStopped,
    Context,
    RequestProblem,
    SyncContext,
    pieces,
    valid_text,
)
from toolgate.tools import ChangedError, Tool, ToolFailure, ToolResult

MAX_INLINE_BYTES = 131_072
"""Largest output inside a result; a longer one is written in pieces before it."""

MAX_MESSAGE_BYTES = 1_000_000

MAX_TITLE = 1_024
MAX_NOTE = 4_096

Done = Callable[[WorkerResult], None]
M = TypeVar("M", bound=Message)


class Body:
    """A body that was entered."""

    def __init__(
        self, tool: Tool[..., Any], start: WorkerStart, port: BodyPort, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._tool = tool
        self._start = start
        self._port = port
        self._loop = loop
        self._context: BodyContext | None = None
        self._task: asyncio.Task[WorkerResult] | None = None
        self._stopped = False

    def enter(self, done: Done) -> None:
        """Starts the body and returns; `done` gets the result, in any thread."""
        if self._tool.is_async:
            self._loop.call_soon_threadsafe(self._enter_task, done)
        else:
            run = contextvars.copy_context().run
            threading.Thread(target=run, args=(self._run, done), name=self._tool.name, daemon=True).start()

    def stop(self) -> None:
        """Asks the body to stop: cancels the task, or marks the context."""
        self._stopped = True
        if self._context is not None:
            self._context.stop()
        if self._tool.is_async:
            self._loop.call_soon_threadsafe(self._cancel)

    def _enter_task(self, done: Done) -> None:
        def ended(task: asyncio.Task[WorkerResult]) -> None:
            # A task that is cancelled before its first step never runs.
            done(WorkerResult(failed=failed(CallStopped(), True)) if task.cancelled() else task.result())

        self._task = self._loop.create_task(self._run_async())
        self._task.add_done_callback(ended)
        if self._stopped:
            self._task.cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _prepare(self, kind: type[BodyContext]) -> tuple[BaseModel, BodyContext]:
        self._context = kind(self._start, self._port)
        if self._stopped:
            self._context.stop()
        try:
            return self._tool.validate(from_struct(self._start.call.input)), self._context
        except ValidationError as error:
            raise InvalidInputError(described(error)) from error

    def _run(self, done: Done) -> None:
        try:
            value = self._tool.enter(*self._prepare(SyncContext))
            for piece in written_before(value):
                self._port.write(*piece).result()
            result = WorkerResult(completed=completed(value))
        except BaseException as error:
            result = WorkerResult(failed=failed(error, self._stopped))
        done(result)

    async def _run_async(self) -> WorkerResult:
        try:
            value = await self._tool.enter(*self._prepare(Context))
            for piece in written_before(value):
                await asyncio.wrap_future(self._port.write(*piece))
            return WorkerResult(completed=completed(value))
        except BaseException as error:
            return WorkerResult(failed=failed(error, self._stopped))


class InvalidInputError(Exception):
    """The input fits the schema and not the model, which may check more."""


def written_before(value: Any) -> list[tuple[bytes, int]]:
    """Returns what is written before a result, with the number of its blob: long output, and files."""
    text = output_of(value)
    written = [(piece, 0) for piece in pieces(text)] if text is not None and is_long(text) else []
    files = (value.attachments or []) if isinstance(value, ToolResult) else []
    return written + [(piece, number) for number, file in enumerate(files, 1) for piece in pieces(file.data)]


def completed(value: Any) -> WorkerCompleted:
    """Returns the message of a result."""
    text = output_of(value)
    message = WorkerCompleted(output=None if text is None or is_long(text) else text)
    if isinstance(value, ToolResult):
        message.title = valid_text(value.title)[:MAX_TITLE]
        message.note = valid_text(value.note)[:MAX_NOTE]
        message.metadata.CopyFrom(to_struct(value.metadata))
        for number, file in enumerate(value.attachments or [], 1):
            message.attachments.append(WorkerAttachment(blob=number, mime=file.mime, filename=file.filename))
    elif value is not None and not isinstance(value, str):
        message.structured.CopyFrom(structured(value))
    return checked(message)


def checked(message: M) -> M:
    """Refuses a message that the service would not take: it would end the connection, which all bodies share."""
    size = message.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        advice = "return or report less, or write it as output"
        raise ToolFailure(f"A message of the tool has {size} bytes, at most {MAX_MESSAGE_BYTES} are allowed: {advice}.")
    return message


def output_of(value: Any) -> str | None:
    """Returns the text of a result; None for what the body wrote itself."""
    text = value.output if isinstance(value, ToolResult) else value
    if text is None or isinstance(text, str):
        return text and valid_text(text)
    return TypeAdapter(type(value)).dump_json(value).decode()


def structured(value: Any) -> Value:
    """Returns a result as JSON."""
    return to_value(TypeAdapter(type(value)).dump_python(value, mode="json"))


def is_long(text: str) -> bool:
    """Checks for a text that does not go into the result."""
    return len(text.encode()) > MAX_INLINE_BYTES


def failed(error: BaseException, was_stopped: bool) -> WorkerFailed:
    """Returns the failure of a body that raised."""
    if was_stopped or isinstance(error, CallStopped | asyncio.CancelledError):
        return WorkerFailed(kind=WorkerFailure.WORKER_FAILURE_STOPPED, message=short(str(error)))
    if isinstance(error, InvalidInputError):
        kind = WorkerFailure.WORKER_FAILURE_INVALID_INPUT
        return WorkerFailed(kind=kind, message=short(str(error)), no_effects=True)
    if isinstance(error, ChangedError):
        return WorkerFailed(kind=WorkerFailure.WORKER_FAILURE_CHANGED, message=short(str(error)), no_effects=True)
    if isinstance(error, ToolFailure | RequestProblem | ValueError | OSError):
        no_effects = isinstance(error, ToolFailure) and error.no_effects
        message = str(error) or type(error).__name__
        return WorkerFailed(kind=WorkerFailure.WORKER_FAILURE_EXPECTED, message=short(message), no_effects=no_effects)
    trace = "".join(traceback.format_exception(error))
    return WorkerFailed(kind=WorkerFailure.WORKER_FAILURE_DEFECT, message=short(trace))


def described(error: ValidationError) -> str:
    """Names each field that does not fit."""
    places = [f"{'.'.join(str(part) for part in each['loc']) or 'the input'}: {each['msg']}" for each in error.errors()]
    return "; ".join(places)


def short(text: str) -> str:
    """Limits a message, keeping both ends, and makes it valid."""
    text = valid_text(text)
    return text if len(text) <= 16_000 else f"{text[:8_000]}\n…\n{text[-8_000:]}"
