"""Workers against a real service."""

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from ordered import read_tool
from service import Service, Wire, token_of

from toolgate import CallError, Client, Context, SyncContext, Tool, ToolFailure, Worker, tool
from toolgate._gen.tool_pb2 import PermissionRequest

long = pytest.mark.skipif(os.environ.get("TOOLGATE_LONG") != "1", reason="TOOLGATE_LONG=1 runs it")
entered: list[str] = []
gate = threading.Event()


@tool
async def flood(kib: int, ctx: Context) -> None:
    """Writes output in uneven pieces."""
    entered.append("flood")
    data = bytes(range(32, 127)) * (kib * 1024 // 95 + 1)
    for at in range(0, kib * 1024, 7000):
        await ctx.output(data[at : min(at + 7000, kib * 1024)])


@tool
def wait_and_ask(ctx: SyncContext) -> str:
    """Waits, asks once more, and returns."""
    entered.append("wait_and_ask")
    ctx.output("before\n")
    gate.wait()
    ctx.ask("deploy_traffic", ["more"])
    return "after"


@tool
async def nap() -> str:
    """Sleeps until it is cancelled."""
    entered.append("nap")
    try:
        await asyncio.sleep(1000)
    finally:
        entered.append("nap stopped")
    return "woke up"


@tool
def grind(ctx: SyncContext) -> str:
    """Works until it is cancelled."""
    entered.append("grind")
    try:
        while True:
            ctx.check()
            time.sleep(0.001)
    finally:
        entered.append("grind stopped")


@tool
def hold_interpreter(seconds: int) -> str:
    """Keeps the interpreter to itself, as an extension in C may: nothing else of the process runs."""
    entered.append("hold_interpreter")
    ctypes.PyDLL(None).sleep(seconds)
    return "over"


@tool(permission="{path}", metadata_keys=["ticket"])
def inspect_file(path: str, ctx: SyncContext) -> dict[str, Any]:
    """Reads a file with a call, and counts the calls of the session."""
    (found,) = ctx.calls([("read", {"filePath": path})])
    if not found.completed:
        raise ToolFailure(found.text)
    count = (ctx.state.get("count") or 0) + 1
    ctx.state.set("count", count)
    return {"has": "hello" in found.text, "count": count, "ticket": ctx.extra.get("ticket")}


TOOLS: list[Tool[..., Any]] = [flood, wait_and_ask, nap, grind, hold_interpreter, inspect_file, read_tool]


@contextmanager
def serving(url: str, *tools: Tool[..., Any], **options: Any) -> Iterator[Worker]:
    worker = Worker(*tools, url=url, token=token_of("worker"), **options)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(lambda: asyncio.run(worker.run()))
        try:
            while not worker.connected and not running.done():
                time.sleep(0.01)
            yield worker
        finally:
            worker.stop()
            running.result(timeout=30)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    entered.clear()
    gate.clear()
    yield
    gate.set()


@pytest.fixture
def people(service: Service) -> Iterator[list[PermissionRequest]]:
    """Approves everything in turn, and lists it."""
    asked: list[PermissionRequest] = []
    with Client(service.url, token_of("approver")) as approver:

        def approve() -> None:
            for ask in approver.watch_asks():
                asked.append(ask)
                approver.reply(ask, "once")

        threading.Thread(target=approve, daemon=True).start()
        yield asked


def test_a_call_survives_a_kill_of_the_service_and_its_body_is_entered_once(
    service: Service, caller: Client, approver: Client, session: str
) -> None:
    with serving(service.url, *TOOLS), ThreadPoolExecutor() as threads:
        called = threads.submit(lambda: caller.call("wait_and_ask", {}, session=session, call_id="c1"))
        asks = approver.watch_asks()
        approver.reply(next(ask for ask in asks if ask.session_id == session), "once")
        while not entered:
            time.sleep(0.01)
        service.kill()
        service.start()
        gate.set()
        second = next(ask for ask in asks if ask.session_id == session)
        assert list(second.patterns) == ["more"]
        service.kill()
        service.start()
        approver.reply(second, "once")
        assert called.result(timeout=60).output == "after"
    assert entered == ["wait_and_ask"]


@pytest.mark.parametrize("seconds", [0, pytest.param(10, marks=long)])
def test_output_is_whole_across_cuts(
    service: Service, caller: Client, people: list[PermissionRequest], seconds: float
) -> None:
    wire = Wire(service.port)
    pieces: list[bytes] = []
    with serving(wire.url, *TOOLS):
        for event in caller.stream("flood", {"kib": 1024}):
            if event.WhichOneof("event") == "output":
                assert event.output.offset == sum(map(len, pieces))
                pieces.append(event.output.data)
                if len(pieces) in (2, 5, 9):
                    wire.is_down = True
                    wire.cut()
                    time.sleep(seconds if len(pieces) == 2 else 0)
                    wire.is_down = False
    data = bytes(range(32, 127)) * (1024 * 1024 // 95 + 1)
    assert b"".join(pieces) == data[: 1024 * 1024]
    assert entered == ["flood"]
    wire.close()


def test_the_example_of_define_tool_runs(
    service: Service, caller: Client, people: list[PermissionRequest], session: str
) -> None:
    file = service.workspace / "notes.txt"
    file.write_text("one\ntwo")
    with serving(service.url, read_tool):
        result = caller.call("py_read", {"file_path": str(file)}, session=session)
    assert (result.title, result.output) == ("notes.txt", "<file>\n    1→one\n    2→two\n</file>")
    assert (result.metadata["truncated"], result.metadata["total_lines"]) == (False, 2)
    # A rule allows what the body asks, `read`.
    assert [ask.permission for ask in people] == ["py_read"]


def test_a_call_asks_without_a_worker_and_runs_once_when_one_starts(
    service: Service, caller: Client, people: list[PermissionRequest], session: str
) -> None:
    with serving(service.url, *TOOLS):
        pass  # The service knows the tools from now on.
    with ThreadPoolExecutor() as threads:
        called = threads.submit(lambda: caller.call("flood", {"kib": 1}, session=session))
        while not people:
            time.sleep(0.01)
        assert entered == []
        with serving(service.url, *TOOLS):
            assert len(called.result(timeout=60).output) == 1024
    assert entered == ["flood"]


@pytest.mark.parametrize("name", ["nap", "grind"])
def test_a_cancelled_call_stops_its_body(
    service: Service, caller: Client, people: list[PermissionRequest], session: str, name: str
) -> None:
    with serving(service.url, *TOOLS), ThreadPoolExecutor() as threads:
        called = threads.submit(lambda: caller.call(name, {}, session=session, call_id="c1"))
        while name not in entered:
            time.sleep(0.01)
        caller.cancel(session, "c1")
        with pytest.raises(CallError) as cancelled:
            called.result(timeout=60)
        assert cancelled.value.reason == "CANCELLED"
        while f"{name} stopped" not in entered:
            time.sleep(0.01)


@long
def test_a_blocked_interpreter_loses_no_call(
    service: Service, caller: Client, people: list[PermissionRequest], session: str
) -> None:
    with serving(service.url, *TOOLS), ThreadPoolExecutor() as threads:
        other = threads.submit(lambda: caller.call("wait_and_ask", {}, session=f"{session}_other"))
        while not entered:
            time.sleep(0.01)
        assert caller.call("hold_interpreter", {"seconds": 45}, session=session).output == "over"
        gate.set()
        assert other.result(timeout=60).output == "after"
    assert entered == ["wait_and_ask", "hold_interpreter"]


def test_a_body_makes_calls_and_stores_state(
    service: Service, caller: Client, people: list[PermissionRequest], session: str
) -> None:
    (service.workspace / "greeting.txt").write_text("hello")
    with serving(service.url, *TOOLS):
        for count in (1, 2):
            result = caller.call("inspect_file", {"path": "greeting.txt"}, session=session, metadata={"ticket": "T1"})
            assert result.structured == {"has": True, "count": count, "ticket": "T1"}
        with pytest.raises(CallError, match="none") as missing:
            caller.call("inspect_file", {"path": "none.txt"}, session=session)
        assert missing.value.reason == "FAILED"
        with pytest.raises(CallError) as invalid:
            caller.call("inspect_file", {"path": 7}, session=session)
        assert invalid.value.reason == "INVALID_INPUT"
