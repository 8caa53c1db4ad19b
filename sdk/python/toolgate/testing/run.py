"""Runs a tool without a service, for its tests."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from toolgate._gen.worker_pb2 import (
    WorkerAnswer,
    WorkerAsk,
    WorkerBodyRequest,
    WorkerCall,
    WorkerEndedCall,
    WorkerEndedCalls,
    WorkerStart,
)
from toolgate._json import from_struct, from_value, to_struct, to_value
from toolgate.context import CallStopped, Context, SyncContext
from toolgate.tools import Tool, ToolResult
from toolgate.worker.body import output_of

Answer = Literal["once", "always", "reject"]
Child = Callable[[Mapping[str, Any]], str]


class RefusedError(Exception):
    """The call ended at an ask that was answered with `reject`."""

    def __init__(self, ask: WorkerAsk) -> None:
        super().__init__(f"{ask.permission} {' '.join(ask.patterns)} was refused")
        self.ask = ask


@dataclass
class ToolRun:
    """The outcome of a run."""

    value: Any = None
    """The value that the body returned."""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    written: str = ""
    """The output that the body wrote."""
    asks: list[WorkerAsk] = field(default_factory=list)
    """The asks of the body, in order."""
    state: dict[str, Any] = field(default_factory=dict)
    """The values that tools store for the session."""

    @property
    def output(self) -> str:
        """The text for the model."""
        text = output_of(self.value)
        return self.written if text is None else text


def run(
    tool: Tool[..., Any],
    args: BaseModel | Mapping[str, Any],
    *,
    answers: Sequence[Answer] = (),
    calls: Mapping[str, Child] | None = None,
    state: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    session_id: str = "ses_test",
) -> ToolRun:
    """Runs the body of a tool and returns the outcome; what the body raises is raised here.

    `answers` answer the asks of the body, in order; RefusedError for `reject`. An ask without an answer is an AssertionError.
    `calls` make the calls of the body, by tool: each is a function from the input to the output.
    """
    given = args if isinstance(args, BaseModel) else tool.validate(args)
    call = WorkerCall(
        session_id=session_id,
        root_session_id=session_id,
        message_id="msg_test",
        call_id="call_test",
        agent="build",
        workspace="default",
        tool=tool.name,
        input=to_struct(given.model_dump(mode="json")),
        metadata=to_struct(extra or {}),
    )
    start = WorkerStart(assignment="test", call=call, attempt=1)
    outcome = ToolRun(state=dict(state or {}))
    port = _Port(outcome, list(answers), calls or {})
    try:
        if tool.is_async:
            outcome.value = asyncio.run(_enter(tool, given, start, port))
        else:
            outcome.value = tool.enter(given, SyncContext(start, port))
    except CallStopped:
        raise RefusedError(outcome.asks[-1]) from None
    if isinstance(outcome.value, ToolResult):
        outcome.title = outcome.value.title
        outcome.metadata.update(outcome.value.metadata)
    return outcome


async def _enter(tool: Tool[..., Any], args: BaseModel, start: WorkerStart, port: "_Port") -> Any:
    return await tool.enter(args, Context(start, port))


class _Port:
    """Answers a body from what the test gave."""

    def __init__(self, run: ToolRun, answers: list[Answer], calls: Mapping[str, Child]) -> None:
        self._run = run
        self._answers = answers
        self._calls = calls

    def progress(self, title: str | None, metadata: Mapping[str, Any] | None) -> None:
        self._run.title = self._run.title if title is None else title
        self._run.metadata = self._run.metadata if metadata is None else dict(metadata)

    def write(self, data: bytes, blob: int = 0) -> Future[None]:
        self._run.written += data.decode(errors="replace")
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def request(self, request: WorkerBodyRequest) -> Future[WorkerAnswer]:
        done: Future[WorkerAnswer] = Future()
        try:
            done.set_result(self._answer(request))
        except BaseException as error:
            done.set_exception(error)
        return done

    def _answer(self, request: WorkerBodyRequest) -> WorkerAnswer:
        match request.WhichOneof("request"):
            case "ask":
                return self._decide(request.ask)
            case "calls":
                made = [self._call(each.tool, from_struct(each.input)) for each in request.calls.calls]
                return WorkerAnswer(calls=WorkerEndedCalls(calls=made))
            case "get_state" if request.get_state in self._run.state:
                return WorkerAnswer(state=to_value(self._run.state[request.get_state]))
            case "set_state":
                self._run.state[request.set_state.name] = from_value(request.set_state.value)
        return WorkerAnswer()

    def _decide(self, ask: WorkerAsk) -> WorkerAnswer:
        self._run.asks.append(ask)
        if not self._answers:
            raise AssertionError(f"the body asks for {ask.permission} {' '.join(ask.patterns)}: give another answer")
        if self._answers.pop(0) == "reject":
            raise CallStopped("refused")
        return WorkerAnswer()

    def _call(self, tool: str, input: dict[str, Any]) -> WorkerEndedCall:
        if tool not in self._calls:
            raise AssertionError(f"the body calls {tool}: give it in `calls`")
        return WorkerEndedCall(call_id=f"call_test.{tool}", completed=True, title=tool, text=self._calls[tool](input))
