"""Rules that a worker keeps whatever happens to its connection."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from peer import Connection, Peer

from toolgate import (
    Attachment,
    CallStopped,
    ChangedError,
    Context,
    Plan,
    RequestError,
    SyncContext,
    Tool,
    ToolFailure,
    ToolResult,
    tool,
)
from toolgate._gen.worker_pb2 import (
    WorkerAnswer,
    WorkerCall,
    WorkerCancel,
    WorkerEnded,
    WorkerFailure,
    WorkerLeave,
    WorkerPlan,
    WorkerReceipt,
)
from toolgate._json import to_struct
from toolgate.tools import Ask

entered: list[str] = []
gate = threading.Event()
stopped = threading.Event()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    entered.clear()
    gate.clear()
    yield
    gate.set()


@tool
def record(name: str) -> str:
    """Records that it was entered, and waits."""
    entered.append(name)
    gate.wait()
    return f"done {name}"


@tool
async def write(pieces: int, ctx: Context) -> None:
    """Writes pieces of 600 bytes."""
    ctx.metadata(title="writing")
    for number in range(pieces):
        await ctx.output(f"{number}" * 600)


@tool
def attach() -> ToolResult:
    """Returns a file that is longer than the window."""
    return ToolResult("attached", "done", attachments=[Attachment(b"a" * 2000, "text/plain", "a.txt")])


@tool
async def ask(ctx: Context) -> str:
    """Asks, and returns."""
    await ctx.ask("ask", ["it"])
    return "allowed"


@tool
async def block() -> str:
    """Blocks the event loop of all bodies."""
    gate.wait()
    return "over"


@tool
async def sleep() -> str:
    """Sleeps until it is cancelled."""
    await asyncio.sleep(1000)
    return "woke up"


@tool
def check(ctx: SyncContext) -> str:
    """Works until it is cancelled."""
    try:
        while True:
            ctx.check()
            time.sleep(0.001)
    except CallStopped:
        stopped.set()
        raise


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    tools = [record, write, ask, block, sleep, check, fail, overload, planning, attach]
    peer = Peer(*tools, capacity=4, **getattr(request, "param", {}))
    yield peer
    peer.close()


@pytest.fixture
def connection(peer: Peer) -> Connection:
    connection = peer.connection()
    connection.welcome()
    return connection


def test_hello_names_the_process_and_its_tools(peer: Peer) -> None:
    hello = peer.connection().welcome()
    assert (hello.protocol, hello.connection, hello.capacity) == (1, 1, 4)
    assert hello.instance_id.startswith("wrk_")
    assert [each.name for each in hello.tools][:3] == ["record", "write", "ask"]
    assert hello.sdk.startswith("toolgate-python")


def test_an_assignment_is_entered_once_also_after_it_has_ended(peer: Peer, connection: Connection) -> None:
    connection.start("a", record, name="a")
    connection.start("a", record, name="again")
    connection.end()
    second = peer.connection()
    assert list(second.welcome().held) == ["a"]
    second.start("a", record, name="again")
    gate.set()
    assert second.report("result").result.completed.output == "done a"
    second.send(ended=WorkerEnded(assignment="a", recorded=True))
    second.start("a", record, name="again")
    second.start("b", record, name="b")
    assert second.report("result").assignment == "b"
    assert entered == ["a", "b"]


def test_what_has_no_receipt_is_sent_again_with_its_place(peer: Peer, connection: Connection) -> None:
    connection.start("a", write, pieces=2)
    assert connection.report("progress").progress.title == "writing"
    assert connection.report("output").output.offset == 0
    assert connection.report("output").output.offset == 600
    connection.send(receipt=WorkerReceipt(assignment="a", stored={0: 600}))
    connection.report("result")
    connection.end()
    second = peer.connection()
    assert list(second.welcome().held) == ["a"]
    second.report("progress")
    again = second.report("output").output
    assert (again.offset, again.data) == (600, b"1" * 600)
    second.report("result")


def test_a_body_waits_while_too_much_output_has_no_receipt(connection: Connection) -> None:
    connection.start("a", write, pieces=3)
    connection.report("progress")
    connection.report("output")
    connection.report("output")
    connection.send(probe="unknown")
    connection.next("known")  # Nothing else was sent before this answer.
    connection.send(receipt=WorkerReceipt(assignment="a", stored={0: 1200}))
    assert connection.report("output").output.offset == 1200
    connection.report("result")


def test_attachments_do_not_count_for_the_window_and_are_sent_again(peer: Peer, connection: Connection) -> None:
    connection.start("a", attach)
    assert connection.report("output").output.blob == 1
    connection.report("result")
    connection.send(receipt=WorkerReceipt(assignment="a", stored={0: 2000}))
    connection.end()
    again = peer.connection()
    again.welcome()
    output = again.report("output").output
    assert (output.blob, output.offset, len(output.data)) == (1, 0, 2000)
    assert again.report("result").result.completed.attachments[0].filename == "a.txt"


def test_a_request_survives_a_cut_under_its_number(peer: Peer, connection: Connection) -> None:
    connection.start("a", ask)
    assert connection.report("request").request.number == 1
    connection.end()
    second = peer.connection()
    second.welcome()
    request = second.report("request").request
    assert (request.number, list(request.ask.patterns)) == (1, ["it"])
    second.send(answer=WorkerAnswer(assignment="a", number=1))
    assert second.report("result").result.completed.output == "allowed"


def test_a_refused_ask_ends_its_body_without_a_result(connection: Connection) -> None:
    connection.start("a", ask)
    connection.report("request")
    connection.send(ended=WorkerEnded(assignment="a"))
    connection.send(probe="a")
    assert connection.next("known").entered is True


def test_a_probe_of_an_unknown_assignment_is_a_promise(connection: Connection) -> None:
    connection.send(probe="a")
    assert connection.next("known").entered is False
    connection.start("a", record, name="a")
    connection.send(probe="b")
    connection.next("known")
    assert entered == []


def test_nothing_is_read_from_a_connection_after_it_was_left(peer: Peer, connection: Connection) -> None:
    connection.send(leave=WorkerLeave(within_ms=10_000))
    connection.start("old", record, name="old")
    second = peer.connection()
    assert list(second.welcome().held) == []
    gate.set()
    second.start("new", record, name="new")
    assert second.report("result").assignment == "new"
    assert entered == ["new"]


def test_a_tool_that_blocks_everything_does_not_stop_the_beats(connection: Connection) -> None:
    connection.start("a", block)
    for _ in range(5):
        connection.next("beat")
    gate.set()
    assert connection.report("result").result.completed.output == "over"


@pytest.mark.parametrize("body", [sleep, check], ids=["async", "sync"])
def test_a_cancelled_body_stops(connection: Connection, body: Tool[..., Any]) -> None:
    connection.start("a", body)
    connection.send(cancel=WorkerCancel(assignment="a", grace_ms=60_000))
    assert connection.report("result").result.failed.kind == WorkerFailure.WORKER_FAILURE_STOPPED


def test_a_body_that_is_cancelled_before_its_first_step_is_reported(connection: Connection) -> None:
    connection.start("a", block)
    connection.start("b", sleep)
    connection.send(cancel=WorkerCancel(assignment="b", grace_ms=60_000))
    connection.send(probe="b")
    connection.next("known")
    gate.set()
    ended = {report.assignment: report.result for report in (connection.report("result"), connection.report("result"))}
    assert ended["b"].failed.kind == WorkerFailure.WORKER_FAILURE_STOPPED


def test_a_body_that_ignores_its_cancel_is_reported_within_the_grace(connection: Connection) -> None:
    connection.start("a", record, name="a")
    connection.send(cancel=WorkerCancel(assignment="a", grace_ms=100))
    failed = connection.report("result").result.failed
    assert (failed.kind, failed.message) == (WorkerFailure.WORKER_FAILURE_STOPPED, "the body did not stop in time")


def test_a_drained_worker_takes_no_more_work_and_leaves_after_the_last_record(
    peer: Peer, connection: Connection
) -> None:
    connection.start("a", record, name="a")
    connection.send(probe="a")
    connection.next("known")
    peer.worker.drain()
    assert connection.next("capacity").draining is True
    connection.start("b", record, name="b")
    refused = connection.report("result")
    assert (refused.assignment, refused.result.WhichOneof("outcome")) == ("b", "not_entered")
    gate.set()
    connection.report("result")
    connection.send(ended=WorkerEnded(assignment="a", recorded=True))
    connection.start("c", record, name="c")  # It was under way when the last record was written.
    assert connection.report("result").result.WhichOneof("outcome") == "not_entered"
    connection.send(leave=WorkerLeave(stop=True))
    peer.wait()
    assert (peer.error, entered) == (None, ["a"])


def test_another_store_stops_the_bodies_of_the_lost_one(peer: Peer, connection: Connection) -> None:
    connection.start("a", check)
    connection.end()
    second = peer.connection()
    hello = second.next("hello")
    assert (list(hello.held), hello.expected_store_id) == (["a"], "sto_1")
    second.end("STORE_CHANGED")
    third = peer.connection().welcome()
    assert (list(third.held), third.expected_store_id) == ([], "")


@pytest.mark.parametrize("peer", [{"resume_timeout": 0.2}], indirect=True)
def test_a_worker_that_reaches_no_service_in_time_stops_its_bodies(peer: Peer) -> None:
    stopped.clear()
    first = peer.connection()
    first.welcome(resume_ms=200, silence_ms=200)
    first.start("a", check)
    second = peer.connection()  # After the silence; the answer to its hello does not come.
    assert list(second.next("hello").held) == ["a"]
    stopped.wait()
    second.end()
    # A body that is missing in `held` counts as never entered, and would be entered again.
    assert list(peer.connection().welcome().held) == ["a"]


def test_a_refused_worker_ends_with_the_reason(peer: Peer) -> None:
    first = peer.connection()
    first.next("hello")
    first.end("WORKER_PROTOCOL")
    peer.wait()
    assert isinstance(peer.error, RequestError)
    assert peer.error.reason == "WORKER_PROTOCOL"


def test_a_worker_whose_instance_id_another_process_has_ends_and_does_not_connect_again(peer: Peer) -> None:
    first = peer.connection()
    first.welcome(notice="another process has the instance_id")
    first.end("WORKER_SUPERSEDED")
    peer.wait()
    assert isinstance(peer.error, RequestError)
    assert peer.error.reason == "WORKER_SUPERSEDED"
    assert "not as a copy of a running one" in str(peer.error)


@tool
def fail(kind: str) -> ToolResult:
    """Fails in one of the ways."""
    errors: dict[str, Exception] = {
        "expected": ToolFailure("for the model", no_effects=True),
        "value": FileNotFoundError("no such file"),
        "changed": ChangedError("it is gone"),
        "defect": KeyError("inner"),
        "surrogate": ValueError("a\udcff"),
    }
    if kind in errors:
        raise errors[kind]
    return ToolResult(title="long", output="x" * 200_000)


@pytest.mark.parametrize(
    ("kind", "failure", "message"),
    [
        ("expected", WorkerFailure.WORKER_FAILURE_EXPECTED, "for the model"),
        ("value", WorkerFailure.WORKER_FAILURE_EXPECTED, "no such file"),
        ("changed", WorkerFailure.WORKER_FAILURE_CHANGED, "it is gone"),
        ("defect", WorkerFailure.WORKER_FAILURE_DEFECT, "KeyError: 'inner'"),
        ("surrogate", WorkerFailure.WORKER_FAILURE_EXPECTED, "a?"),
        (7, WorkerFailure.WORKER_FAILURE_INVALID_INPUT, "kind: Input should be a valid string"),
    ],
)
def test_a_failure_has_its_kind(connection: Connection, kind: object, failure: int, message: str) -> None:
    connection.start("a", fail, kind=kind)
    failed = connection.report("result").result.failed
    assert failed.kind == failure
    assert message in failed.message


@tool
async def overload(kind: str, ctx: Context) -> str:
    """Sends what is too large for a message, or is no text."""
    large = {"a": "x" * 1_000_000}
    match kind:
        case "progress":
            ctx.metadata(metadata=large)
        case "state":
            await ctx.state.set("a", large)
        case "calls":
            await ctx.calls([("record", large)])
        case "error":
            raise ValueError("a\udcff")
    return "a\udcff"


@pytest.mark.parametrize("kind", ["progress", "state", "calls", "error"])
def test_a_body_whose_messages_cannot_be_sent_fails_alone(connection: Connection, kind: str) -> None:
    connection.start("a", overload, kind=kind)
    assert connection.report("result").result.failed.kind == WorkerFailure.WORKER_FAILURE_EXPECTED
    connection.start("b", overload, kind="output")
    assert connection.report("result").result.completed.output == "a?"


def test_a_long_output_is_written_before_the_result(connection: Connection) -> None:
    connection.start("a", fail, kind="none")
    assert len(connection.report("output").output.data) == 200_000
    connection.send(receipt=WorkerReceipt(assignment="a", stored={0: 200_000}))
    result = connection.report("result").result.completed
    assert (result.title, result.HasField("output")) == ("long", False)


@tool
def planning(path: str, ctx: SyncContext) -> str:
    """Returns the detail of its plan."""
    return ctx.detail.decode()


@planning.plan
def plan_path(path: str) -> Plan:
    if path == "":
        raise ValueError("no path: name one")
    return Plan(title=path, asks=[Ask("planning", [path])], detail=b"seen")


def test_a_plan_names_its_asks_or_its_problem(connection: Connection) -> None:
    for path in ("a.txt", ""):
        call = WorkerCall(tool="planning", input=to_struct({"path": path}))
        connection.send(plan=WorkerPlan(plan_id=f"plan {path}", call=call))
    answers = {answer.plan_id: answer for answer in (connection.next("planned"), connection.next("planned"))}
    made = answers["plan a.txt"]
    assert (made.title, made.detail, list(made.asks[0].patterns)) == ("a.txt", b"seen", ["a.txt"])
    assert "no path: name one" in answers["plan "].problem
