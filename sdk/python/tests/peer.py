"""The service's side of the worker protocol, as a test dictates it: for what a correct service does not do."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from toolgate import Tool, Worker
from toolgate._gen.worker_pb2 import (
    RegisteredTool,
    ToolRegistration,
    WorkerCall,
    WorkerHello,
    WorkerReport,
    WorkerStart,
    WorkerWelcome,
    WorkRequest,
    WorkResponse,
)
from toolgate._gen.worker_service_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from toolgate._json import to_struct


class Connection:
    """One connection of a worker."""

    def __init__(self) -> None:
        self.received: queue.Queue[WorkRequest] = queue.Queue()
        self.out: queue.Queue[WorkResponse | str] = queue.Queue()

    def send(self, **message: Any) -> None:
        self.out.put(WorkResponse(**message))

    def end(self, reason: str = "") -> None:
        """Ends the stream: as a lost connection, or with a reason."""
        self.out.put(reason)

    def next(self, kind: str) -> Any:
        """Returns the next message, which must be of that kind; beats are skipped unless wanted."""
        while True:
            message = self.received.get(timeout=20)
            found = message.WhichOneof("message")
            if found == kind:
                return getattr(message, kind)
            assert found == "beat", f"{found} arrived, not {kind}: {message}"

    def report(self, kind: str) -> WorkerReport:
        report: WorkerReport = self.next("report")
        assert report.WhichOneof("report") == kind, report
        return report

    def welcome(self, **limits: Any) -> WorkerHello:
        hello: WorkerHello = self.next("hello")
        registered = ToolRegistration.TOOL_REGISTRATION_REGISTERED
        tools = [RegisteredTool(name=tool.name, definition_id="tl_1", registration=registered) for tool in hello.tools]
        given = {
            "store_id": "sto_1",
            "beat_ms": 100,
            "silence_ms": 10_000,
            "resume_ms": 30_000,
            "window_bytes": 1000,
            **limits,
        }
        self.send(welcome=WorkerWelcome(tools=tools, **given))
        return hello

    def start(self, assignment: str, tool: Tool[..., Any], **input: Any) -> None:
        call = WorkerCall(session_id="ses_1", call_id="call_1", tool=tool.name, input=to_struct(input))
        self.send(start=WorkerStart(assignment=assignment, call=call, attempt=1))


class Peer(WorkerServiceServicer):
    """A server that hands each connection to the test, and a worker that connects to it."""

    def __init__(self, *tools: Tool[..., Any], **options: Any) -> None:
        self._connections: queue.Queue[Connection] = queue.Queue()
        self._opened: list[Connection] = []
        self._server = grpc.server(ThreadPoolExecutor())
        add_WorkerServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.worker = Worker(*tools, url=f"http://127.0.0.1:{port}", token="worker-token", **options)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def connection(self) -> Connection:
        """Returns the next connection that the worker opens."""
        return self._connections.get(timeout=20)

    def wait(self) -> None:
        """Waits until the worker has ended."""
        self._thread.join(timeout=20)
        assert not self._thread.is_alive(), "the worker goes on"

    def close(self) -> None:
        self.worker.stop()
        self._server.stop(None)
        for connection in self._opened:
            connection.end()

    def _run(self) -> None:
        try:
            asyncio.run(self.worker.run())
        except BaseException as error:
            self.error = error

    def Work(self, request_iterator: Iterator[WorkRequest], context: Any) -> Iterator[WorkResponse]:
        connection = Connection()
        threading.Thread(target=self._receive, args=(connection, request_iterator), daemon=True).start()
        self._opened.append(connection)
        self._connections.put(connection)
        while isinstance(message := connection.out.get(), WorkResponse):
            yield message
        if not message:
            context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        detail = AnyMessage()
        detail.Pack(error_details_pb2.ErrorInfo(reason=message, domain="opencode.tool.v1"))
        status = status_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], message=message, details=[detail])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)

    def _receive(self, connection: Connection, requests: Iterator[WorkRequest]) -> None:
        try:
            for request in requests:
                connection.received.put(request)
        except grpc.RpcError:
            return  # The connection ended.
        connection.end()  # The worker left.
