"""The assignments of a process: what was entered, and what has no receipt yet. Only the thread of the connection uses it."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from toolgate._gen.worker_pb2 import (
    WorkerAnswer,
    WorkerBodyRequest,
    WorkerOutput,
    WorkerProgress,
    WorkerReport,
    WorkerResult,
    WorkRequest,
)
from toolgate.context import CallStopped
from toolgate.worker.body import Body

MAX_REMEMBERED = 100_000
"""Number of ended assignments that are remembered, so that none of them is entered again."""

T = TypeVar("T")
Send = Callable[[WorkRequest], None]


class Blob:
    """Bytes of an output or a file that have no receipt yet."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self._pieces: deque[bytes] = deque()

    def add(self, data: bytes) -> int:
        """Adds bytes, and returns their offset."""
        offset = self.end
        self._pieces.append(data)
        self.end += len(data)
        return offset

    def drop(self, stored: int) -> None:
        """Forgets what is stored."""
        while self._pieces and self.start + len(self._pieces[0]) <= stored:
            self.start += len(self._pieces.popleft())

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yields the pieces with their offsets."""
        offset = self.start
        for piece in self._pieces:
            yield offset, piece
            offset += len(piece)


class Assignment:
    """One run of one body."""

    def __init__(self, name: str, send: Send, window: int) -> None:
        self.name = name
        self.body: Body | None = None
        self.window = window
        self.result: WorkerResult | None = None
        self._send = send
        self._blobs: dict[int, Blob] = {}
        self._progress: WorkerProgress | None = None
        self._requests: dict[int, tuple[WorkerBodyRequest, Future[WorkerAnswer]]] = {}
        self._requested = 0
        self._waiting: deque[Future[None]] = deque()
        self._is_over = False

    def progress(self, progress: WorkerProgress) -> None:
        """Sends a new title and metadata; what is absent stays."""
        if self.result is not None or self._is_over:
            return
        if self._progress is None:
            self._progress = WorkerProgress()
        if progress.HasField("title"):
            self._progress.title = progress.title
        if progress.HasField("metadata"):
            self._progress.metadata.CopyFrom(progress.metadata)
        self._report(WorkerReport(progress=progress))

    def write(self, number: int, data: bytes, done: Future[None]) -> None:
        """Sends output, which is kept until its receipt, or an attachment, which is kept until `ended`."""
        if self.result is not None or self._is_over:
            fail(done)
            return
        offset = self._blobs.setdefault(number, Blob()).add(data)
        self._report(WorkerReport(output=WorkerOutput(blob=number, offset=offset, data=data)))
        self._waiting.append(done)
        self._release()

    def request(self, request: WorkerBodyRequest, done: Future[WorkerAnswer]) -> None:
        """Sends a request; it is kept until its answer."""
        if self.result is not None or self._is_over:
            fail(done)
            return
        self._requested += 1
        request.number = self._requested
        self._requests[request.number] = (request, done)
        self._report(WorkerReport(request=request))

    def answer(self, answer: WorkerAnswer) -> None:
        """Hands an answer to the body; one that was handed over before has no effect."""
        _, done = self._requests.pop(answer.number, (None, None))
        if done is not None:
            settle(done, answer)

    def receipt(self, stored: dict[int, int]) -> None:
        """Forgets what is stored, and lets a body go on that waits for that."""
        for number, length in stored.items():
            if number in self._blobs:
                self._blobs[number].drop(length)
        self._release()

    def finish(self, result: WorkerResult) -> None:
        """Sends the result; it is kept until `ended`. Only the first one counts."""
        if self.result is None and not self._is_over:
            self.result = result
            self._report(WorkerReport(result=result))

    def over(self) -> None:
        """Stops the body, if it still runs, and everything that it waits for."""
        self._is_over = True
        if self.body is not None and self.result is None:
            self.body.stop()
        for _, answer in self._requests.values():
            fail(answer)
        for done in self._waiting:
            fail(done)
        self._requests.clear()
        self._waiting.clear()
        self._blobs.clear()

    def send_again(self) -> None:
        """Sends everything that has no receipt, over the next connection."""
        if self._progress is not None:
            self._report(WorkerReport(progress=self._progress))
        for number, blob in self._blobs.items():
            for offset, data in blob.pieces():
                self._report(WorkerReport(output=WorkerOutput(blob=number, offset=offset, data=data)))
        for request, _ in self._requests.values():
            self._report(WorkerReport(request=request))
        if self.result is not None:
            self._report(WorkerReport(result=self.result))

    def _report(self, report: WorkerReport) -> None:
        report.assignment = self.name
        self._send(WorkRequest(report=report))

    def _release(self) -> None:
        # Attachments have no receipts, so a body does not wait for those.
        output = self._blobs.get(0)
        if output is not None and output.end - output.start > self.window:
            return
        while self._waiting:
            settle(self._waiting.popleft(), None)


class Assignments:
    """All assignments of a process."""

    def __init__(self) -> None:
        self.running: dict[str, Assignment] = {}
        """Entered and not ended."""
        self._over: OrderedDict[str, bool] = OrderedDict()

    @property
    def held(self) -> list[str]:
        """The entered assignments that are not ended."""
        return list(self.running)

    def is_known(self, name: str) -> bool:
        """True for an assignment that must not be entered: it was, or this process has promised never to."""
        return name in self.running or name in self._over

    def was_entered(self, name: str) -> bool:
        """Answers a probe. False is a promise: the assignment is never entered from now on."""
        if name in self.running:
            return True
        if name not in self._over:
            self._remember(name, False)
        return self._over[name]

    def add(self, assignment: Assignment) -> None:
        """Records that a body is entered. Call it before the body is."""
        self.running[assignment.name] = assignment

    def refuse(self, name: str) -> None:
        """Records that a body is never entered."""
        self._remember(name, False)

    def end(self, name: str) -> None:
        """Forgets an assignment that is over, except that it was entered."""
        assignment = self.running.pop(name, None)
        if assignment is not None:
            self._remember(name, True)
            assignment.over()

    def end_all(self) -> None:
        """Stops all bodies: their calls are over."""
        for name in self.held:
            self.end(name)

    def _remember(self, name: str, entered: bool) -> None:
        self._over[name] = entered
        if len(self._over) > MAX_REMEMBERED:
            self._over.popitem(last=False)


def settle(done: Future[T], value: T) -> None:
    """Ends the wait of a body, unless its task was cancelled."""
    with suppress(InvalidStateError):
        done.set_result(value)


def fail(done: Future[Any]) -> None:
    """Ends the wait of a body whose call is over."""
    with suppress(InvalidStateError):
        done.set_exception(CallStopped("the call is over"))
