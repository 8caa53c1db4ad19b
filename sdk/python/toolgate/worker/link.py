"""The connection of a worker: its own thread and event loop, so that no tool can stop its beats."""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeAlias, cast

import grpc

from toolgate._connection import Server
from toolgate._gen.worker_pb2 import (
    ToolRegistration,
    WorkerAnswer,
    WorkerBeat,
    WorkerBodyRequest,
    WorkerCancel,
    WorkerCapacity,
    WorkerFailed,
    WorkerFailure,
    WorkerHello,
    WorkerKnown,
    WorkerPlan,
    WorkerProgress,
    WorkerReport,
    WorkerResult,
    WorkerStart,
    WorkerWelcome,
    WorkRequest,
    WorkResponse,
)
from toolgate._gen.worker_service_pb2_grpc import WorkerServiceStub
from toolgate._json import to_struct
from toolgate.context import valid_text
from toolgate.errors import ToolgateError, is_cut, request_error
from toolgate.tools import Tool
from toolgate.worker.assignments import Assignment, Assignments
from toolgate.worker.body import MAX_TITLE, Body, checked
from toolgate.worker.plan import planned

log = logging.getLogger("toolgate.worker")

WELCOME_SECONDS = 15.0
LEAVE_SECONDS = 1.0
DISMISSAL_SECONDS = 5.0
"""Time for the service to confirm that a worker that drains gets no more work."""
GRACE_SHARE = 0.8
"""Part of the grace after which a body that does not stop is reported as stopped, so that the report is in time."""

FINAL = ("WORKER_PROTOCOL", "UNAUTHENTICATED", "ROLE_MISSING", "INVALID_MESSAGE", "NOT_SERVED", "HOST_REFUSED")
"""Reasons that another attempt does not change. A worker that was connected before goes on trying nevertheless."""


Stream: TypeAlias = "grpc.aio.StreamStreamCall[WorkRequest, WorkResponse]"
Outbox: TypeAlias = asyncio.Queue[WorkRequest | None]


class Link:
    """Connects a worker, again and again, until it is drained or stopped."""

    def __init__(
        self, server: Server, hello: WorkerHello, tools: Mapping[str, Tool[..., Any]], bodies: asyncio.AbstractEventLoop
    ) -> None:
        self._server = server
        self._hello = hello
        self._tools = tools
        self._bodies = bodies
        self._assignments = Assignments()
        self._outbox: Outbox | None = None
        self._reading: asyncio.Timeout | None = None
        self._left: tuple[Stream, Outbox] | None = None
        self._draining = False
        self._dismissed = False
        self._was_welcome = False
        self._window = 0
        self._silence = 0.0
        self._heard = time.monotonic()
        self._is_idle = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self.ended: Future[None] = Future()
        self.ready = threading.Event()
        """Set while the worker is connected."""

    def start(self) -> None:
        """Starts the thread. `ended` is done when the worker was drained, or failed."""
        threading.Thread(target=self._run, name="toolgate-worker", daemon=True).start()

    @property
    def held(self) -> list[str]:
        """See Worker.held."""
        return self._assignments.held

    def drain(self) -> None:
        """Takes no more work, and ends when the last result is recorded. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._drain)

    def stop_bodies(self) -> None:
        """Stops all bodies; their results are still sent. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._stop_bodies)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._stay_connected())
            self.ended.set_result(None)
        except BaseException as error:
            self.ended.set_exception(error)

    # Connections

    async def _stay_connected(self) -> None:
        channel = self._server.open_channel()
        stub = WorkerServiceStub(channel)
        silence = self._loop.create_task(self._end_calls_of_lost_service())
        attempt = 0
        try:
            while not (self._draining and not self._assignments.running):
                self._hello.connection += 1
                outbox: Outbox = asyncio.Queue()
                outbox.put_nowait(WorkRequest(hello=self._hello_now()))
                try:
                    await self._serve(stub.Work(_messages(outbox), metadata=self._server.metadata), outbox)
                    attempt = 0
                    continue
                except (grpc.aio.AioRpcError, ConnectionError) as error:
                    attempt = 0 if self.ready.is_set() else attempt
                    self._note(error)
                finally:
                    self._outbox = None
                    self.ready.clear()
                await self._pause(attempt)
                attempt += 1
        finally:
            silence.cancel()
            await channel.close()

    def _note(self, error: grpc.aio.AioRpcError | ConnectionError) -> None:
        """Logs why a connection ended; raises if another one would end in the same way."""
        if self._draining and not self._assignments.running:
            return
        if isinstance(error, grpc.aio.AioRpcError) and not is_cut(error):
            refusal = request_error(error)
            if refusal.reason == "STORE_CHANGED":
                log.error("the service has another store: the bodies of its calls are stopped")
                self._forget_service()
                return
            if refusal.reason == "WORKER_SUPERSEDED":
                # The two would end each other's connections without end.
                self._stop_bodies()
                raise refusal
            if refusal.reason in FINAL and not self._was_welcome:
                raise refusal
            log.warning("the service ended the connection: %s", refusal)
            return
        detail = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
        log.info("connection to %s lost (%s); connecting again", self._server.url, detail)

    async def _pause(self, attempt: int) -> None:
        await asyncio.sleep(min(0.1 * 2**attempt, 2.0) * random.uniform(0.75, 1.25))

    def _hello_now(self) -> WorkerHello:
        hello = WorkerHello()
        hello.CopyFrom(self._hello)
        hello.held.extend(self._assignments.held)
        return hello

    async def _serve(self, stream: "Stream", outbox: "Outbox") -> None:
        """Serves one connection to its end. Returns if the service asked for the next one, or the drained worker left."""
        beats: asyncio.Task[None] | None = None
        try:
            welcome = (await self._read(stream, WELCOME_SECONDS)).welcome
            self._welcomed(welcome, outbox)
            beats = self._loop.create_task(self._beat(welcome.beat_ms / 1000))
            while True:
                message = await self._read(stream, self._silence)
                if message.HasField("leave") and not message.leave.stop:
                    self._left = (stream, outbox)
                    return
                self._handle(message)
        finally:
            if beats is not None:
                beats.cancel()
            if self._left is None or self._left[0] is not stream:
                _close(stream, outbox)

    async def _read(self, stream: "Stream", seconds: float) -> WorkResponse:
        try:
            async with asyncio.timeout(seconds) as self._reading:
                message = await stream.read()
        except TimeoutError:
            raise ConnectionError(f"nothing was heard for {seconds:g} s") from None
        finally:
            self._reading = None
        if message is grpc.aio.EOF:
            raise ConnectionError("the service ended the stream")
        self._heard = time.monotonic()
        return cast(WorkResponse, message)

    def _welcomed(self, welcome: WorkerWelcome, outbox: "Outbox") -> None:
        if self._left is not None:
            _close(*self._left)
            self._left = None
        self._refuse_without_tools(welcome)
        self._hello.expected_store_id = welcome.store_id
        self._hello.resume_ms = welcome.resume_ms
        self._window = welcome.window_bytes
        self._silence = welcome.silence_ms / 1000
        self._was_welcome = True
        self._outbox = outbox
        log.info("connected to %s with %s", self._server.url, ", ".join(tool.name for tool in welcome.tools))
        if welcome.notice:
            log.warning("%s", welcome.notice)
        for assignment in self._assignments.running.values():
            assignment.window = welcome.window_bytes
            assignment.send_again()
        if self._draining:
            self._send(WorkRequest(capacity=WorkerCapacity(draining=True)))
        self.ready.set()

    def _refuse_without_tools(self, welcome: WorkerWelcome) -> None:
        refused = [tool for tool in welcome.tools if tool.registration != ToolRegistration.TOOL_REGISTRATION_REGISTERED]
        for each in refused:
            kind = ToolRegistration.Name(each.registration).removeprefix("TOOL_REGISTRATION_")
            log.error("the service refused the tool %s: %s (%s)", each.name, each.message, kind)
        if len(refused) == len(welcome.tools) and not self._was_welcome:
            raise ToolsRefusedError("; ".join(f"{each.name}: {each.message}" for each in refused))

    async def _beat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds / 2)
            self._send(WorkRequest(beat=WorkerBeat()))

    def _leave_if_drained(self) -> None:
        """Ends the sending side, and gives the service a moment to end its own.

        Before that the service confirms that nothing is under way: a call whose start is would wait for this process in vain.
        """
        if not self._draining or self._assignments.running or self._outbox is None:
            return
        if not self._dismissed:
            self._loop.call_later(DISMISSAL_SECONDS, self._dismiss)
            return
        self._outbox.put_nowait(None)
        self._silence = LEAVE_SECONDS
        if self._reading is not None:
            self._reading.reschedule(self._loop.time() + LEAVE_SECONDS)

    def _dismiss(self) -> None:
        self._dismissed = True
        self._leave_if_drained()

    async def _end_calls_of_lost_service(self) -> None:
        """Stops the bodies when the service was not heard for the time for which it waits: their calls are over."""
        while True:
            await asyncio.sleep(0.5)
            patience = max(self._hello.resume_ms / 1000, self._silence)
            if self._assignments.running and time.monotonic() - self._heard > patience:
                log.error("nothing was heard for %g s: the bodies are stopped, their calls are over", patience)
                # They stay held until the service reports their end: a missing one counts as never entered.
                self._stop_bodies()
                self._heard = time.monotonic()

    def _forget_service(self) -> None:
        self._assignments.end_all()
        self._hello.expected_store_id = ""

    # Messages

    def _send(self, message: WorkRequest) -> None:
        """Sends on the current connection. Without one nothing is lost: assignments send again what has no receipt."""
        if self._outbox is not None:
            self._outbox.put_nowait(message)

    def _handle(self, message: WorkResponse) -> None:
        running = self._assignments.running
        match message.WhichOneof("message"):
            case "start":
                self._start(message.start)
            case "cancel" if message.cancel.assignment in running:
                self._cancel(running[message.cancel.assignment], message.cancel)
            case "receipt" if message.receipt.assignment in running:
                running[message.receipt.assignment].receipt(dict(message.receipt.stored))
            case "answer" if message.answer.assignment in running:
                running[message.answer.assignment].answer(message.answer)
            case "probe":
                known = WorkerKnown(assignment=message.probe, entered=self._assignments.was_entered(message.probe))
                self._send(WorkRequest(known=known))
            case "ended":
                self._assignments.end(message.ended.assignment)
                self._leave_if_drained()
            case "plan":
                self._plan(message.plan)
            case "leave" if self._draining:
                self._dismiss()
            case "leave":
                self._drain()

    def _start(self, start: WorkerStart) -> None:
        name = start.assignment
        if self._assignments.is_known(name):
            return
        tool = self._tools.get(start.call.tool)
        if tool is None or self._draining:
            why = "the worker takes no more work" if tool else f"the worker has no tool {start.call.tool}"
            self._assignments.refuse(name)
            self._send(WorkRequest(report=WorkerReport(assignment=name, result=WorkerResult(not_entered=why))))
            return
        assignment = Assignment(name, self._send, self._window)
        assignment.body = Body(tool, start, Port(self._loop, assignment), self._bodies)
        self._assignments.add(assignment)
        assignment.body.enter(lambda result: self._call(assignment.finish, result))

    def _cancel(self, assignment: Assignment, cancel: WorkerCancel) -> None:
        if assignment.body is not None:
            assignment.body.stop()
        failed = WorkerFailed(kind=WorkerFailure.WORKER_FAILURE_STOPPED, message="the body did not stop in time")
        grace = cancel.grace_ms / 1000 * GRACE_SHARE
        self._loop.call_later(grace, assignment.finish, WorkerResult(failed=failed))

    def _plan(self, plan: WorkerPlan) -> None:
        tool = self._tools.get(plan.call.tool)
        done = planned(tool, plan, self._bodies)
        done.add_done_callback(lambda answer: self._call(self._send, WorkRequest(planned=answer.result())))

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        self._send(WorkRequest(capacity=WorkerCapacity(draining=True)))
        self._leave_if_drained()

    def _stop_bodies(self) -> None:
        for assignment in self._assignments.running.values():
            if assignment.body is not None:
                assignment.body.stop()

    def _call(self, function: Any, *arguments: Any) -> None:
        """Calls a function in the thread of the link, from any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: the worker has ended.
            self._loop.call_soon_threadsafe(function, *arguments)


def _close(stream: "Stream", outbox: Outbox) -> None:
    outbox.put_nowait(None)  # Otherwise the sender of an ended stream waits for ever.
    stream.cancel()


async def _messages(outbox: Outbox) -> AsyncIterator[WorkRequest]:
    """Yields what one connection sends. Nothing of an old connection is left in its queue."""
    while (message := await outbox.get()) is not None:
        yield message


class Port:
    """The way from a body, in any thread, to its assignment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, assignment: Assignment) -> None:
        self._loop = loop
        self._assignment = assignment

    def progress(self, title: str | None, metadata: Mapping[str, Any] | None) -> None:
        title = None if title is None else valid_text(title)[:MAX_TITLE]
        message = WorkerProgress(title=title, metadata=None if metadata is None else to_struct(metadata))
        self._loop.call_soon_threadsafe(self._assignment.progress, checked(message))

    def write(self, data: bytes, blob: int = 0) -> Future[None]:
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(self._assignment.write, blob, data, done)
        return done

    def request(self, request: WorkerBodyRequest) -> Future[WorkerAnswer]:
        done: Future[WorkerAnswer] = Future()
        self._loop.call_soon_threadsafe(self._assignment.request, checked(request), done)
        return done


class ToolsRefusedError(ToolgateError):
    """The service registered none of the tools."""

    def __init__(self, problems: str) -> None:
        super().__init__(
            f"the service registered none of the tools: {problems}",
            "correct them, or the `tools` and `permissions` of the worker's token",
        )
