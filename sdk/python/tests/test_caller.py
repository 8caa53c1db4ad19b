"""The caller's side against a real service."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from service import Service, Wire, free_port, token_of

from toolgate import (
    AsyncClient,
    CallError,
    Client,
    RequestError,
    ToolgateError,
    UnreachableError,
    WaitTimeoutError,
    Worker,
    tool,
)
from toolgate._gen.tool_pb2 import PermissionRequest

EXAMPLES = Path(__file__).parents[1] / "examples"


def opened(approver: Client, session: str) -> PermissionRequest:
    """Waits for the permission request of a session."""
    return next(ask for ask in approver.watch_asks() if ask.session_id == session)


def test_a_call_returns_its_result(caller: Client) -> None:
    result = caller.call("bash", {"command": "echo hello; exit 3"}, agent="free")
    assert (result.output.splitlines()[0], result.exit) == ("hello", 3)
    assert result.metadata["truncated"] is False


def test_the_example_survives_a_kill_of_the_service_while_it_waits_for_a_person(
    service: Service, approver: Client
) -> None:
    ledger = service.workspace / "ledger"
    program = subprocess.Popen(
        [sys.executable, EXAMPLES / "call.py", f"echo ran >> {ledger}; echo done", "call_1"],
        env={**os.environ, "TOOLGATE_URL": service.url, "TOOLGATE_TOKEN": token_of("caller")},
        stdout=subprocess.PIPE,
        text=True,
    )
    ask = opened(approver, "ses_example")
    service.kill()
    service.start()
    approver.reply(ask, "once", whole_call=True)
    output, _ = program.communicate(timeout=60)
    assert (output.strip(), program.returncode) == ("done", 0)
    assert ledger.read_text() == "ran\n"


def test_a_stream_goes_on_after_a_cut_with_each_event_once(service: Service, session: str) -> None:
    wire = Wire(service.port)
    seen: list[tuple[int, str]] = []
    with Client(wire.url, token_of("caller")) as client:
        command = f"echo one; until [ -e {service.workspace}/go ]; do sleep 0.05; done; echo two"
        for event in client.stream("bash", {"command": command}, agent="free", session=session):
            kind = event.WhichOneof("event") or ""
            seen.append((event.seq, kind))
            if kind == "output" and event.output.data == b"one\n":
                wire.cut()
                (service.workspace / "go").touch()
    assert [seq for seq, _ in seen] == list(range(1, len(seen) + 1))
    assert [kind for _, kind in seen] == ["part", "part", "output", "output", "part"]
    wire.close()


def test_a_refused_call_raises_its_reason_with_the_next_step(caller: Client, approver: Client, session: str) -> None:
    def refuse() -> None:
        approver.reply(opened(approver, session), "reject", message="use the other branch")

    with ThreadPoolExecutor() as people, pytest.raises(CallError, match="use the other branch") as refused:
        people.submit(refuse)
        caller.call("bash", {"command": "git push"}, session=session)
    assert (refused.value.reason, refused.value.effects) == ("REJECTED", "NONE")
    assert refused.value.next_step.startswith("follow the advice")


def test_a_time_limit_of_the_client_leaves_the_call_to_be_attached_to(
    caller: Client, approver: Client, session: str
) -> None:
    with ThreadPoolExecutor() as threads:
        first = threads.submit(lambda: caller.call("bash", {"command": "echo late"}, session=session, call_id="c1"))
        ask = opened(approver, session)
        with pytest.raises(WaitTimeoutError) as late:
            caller.call("bash", {"command": "echo late"}, session=session, call_id="c1", timeout=0.2)
        assert (late.value.session_id, late.value.call_id) == (session, "c1")
        approver.reply(ask, "once")
        assert first.result().output == "late\n"
    assert caller.call("bash", {"command": "echo late"}, session=session, call_id="c1").output == "late\n"


def test_a_call_whose_events_were_removed_returns_its_stored_result(service: Service, caller: Client) -> None:
    call = {"session": "ses_trimmed", "call_id": "c1", "agent": "free"}
    assert caller.call("bash", {"command": "echo once"}, **call).output == "once\n"
    service.kill()
    with closing(sqlite3.connect(service.folder / "data" / "toolgate.sqlite", isolation_level=None)) as db:
        # As the service removes them after a day.
        [ordinal, last] = db.execute(
            "SELECT session, max(seq) FROM log WHERE session = (SELECT ordinal FROM sessions WHERE id = 'ses_trimmed')"
        ).fetchone()
        db.execute("DELETE FROM log WHERE session = ?", (ordinal,))
        db.execute("UPDATE sessions SET trimmed = ? WHERE ordinal = ?", (last, ordinal))
    service.start()
    assert caller.call("bash", {"command": "echo once"}, **call).output == "once\n"
    with pytest.raises(RequestError) as refused:
        list(caller.stream("bash", {"command": "echo once"}, **call))
    assert (refused.value.reason, refused.value.call_id) == ("HISTORY_TRIMMED", "c1")


def test_a_client_that_closes_cancels_its_aborted_calls(service: Service, caller: Client, approver: Client) -> None:
    for number in range(20):
        ids = {"session": f"ses_closing_{number}", "call_id": "c1"}
        client = Client(service.url, token_of("caller"))
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.call, "bash", {"command": "true"}, cancel_on_abort=True, **ids)
            opened(approver, ids["session"])
            client.close()
            assert isinstance(waiting.exception(), CancelledError)
        assert caller.get(**ids).WhichOneof("state") == "error"


def test_a_cancel_waits_for_a_call_whose_request_is_under_way(service: Service) -> None:
    async def main() -> list[str]:
        found = []
        async with AsyncClient(service.url, token_of("caller")) as client:
            for number in range(20):
                ids = {"session": f"ses_early_{number}", "call_id": "c1"}
                await client.create_session(ids["session"])
                task = asyncio.create_task(client.call("bash", {"command": "true"}, cancel_on_abort=True, **ids))
                for _ in range(number):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                try:
                    found.append((await client.get(**ids)).WhichOneof("state") or "")
                except RequestError:
                    continue  # The task was cancelled before it sent the call.
        return found

    assert set(asyncio.run(main())) == {"error"}


def test_an_answer_by_id_may_change_the_input(caller: Client, approver: Client, session: str) -> None:
    def change() -> None:
        first = opened(approver, session)
        approver.reply(first.id, "once", input={"command": "echo changed"})
        second = next(ask for ask in approver.watch_asks(session) if ask.id != first.id)
        approver.reply(second, "once")

    with ThreadPoolExecutor() as people:
        people.submit(change)
        result = caller.call("bash", {"command": "echo original"}, session=session)
    assert "changed" in result.output
    assert caller.get(session, result.call_id).edited_by == "approver"


def test_a_cancelled_task_cancels_its_call_on_request(service: Service, session: str) -> None:
    async def main() -> str:
        async with AsyncClient(service.url, token_of("caller")) as client:
            call = client.call("bash", {"command": "true"}, session=session, call_id="c1", cancel_on_abort=True)
            task = asyncio.create_task(call)
            async with AsyncClient(service.url, token_of("approver")) as approver:
                await anext(ask async for ask in approver.watch_asks() if ask.session_id == session)
            task.cancel()
            await asyncio.wait([task])
            part = await client.get(session, "c1")
            return part.error.error

    assert "ancelled" in asyncio.run(main())


def test_a_long_output_is_read_in_full(caller: Client) -> None:
    result = caller.call("bash", {"command": "seq 300000"}, agent="free")
    assert result.metadata["truncated"] is True
    whole = caller.read_output(result.session_id, result.metadata["outputPath"])
    assert whole == "".join(f"{number}\n" for number in range(1, 300_001)).encode()


def test_two_clients_in_two_threads_do_not_disturb_each_other(service: Service) -> None:
    def work(name: str, outputs: list[str]) -> None:
        with Client(service.url, token_of("caller")) as client:
            for number in range(5):
                outputs.append(client.call("bash", {"command": f"echo {name}{number}"}, agent="free").output.strip())

    found: dict[str, list[str]] = {"a": [], "b": []}
    with ThreadPoolExecutor() as threads:
        list(threads.map(work, found.keys(), found.values()))
    assert found == {name: [f"{name}{number}" for number in range(5)] for name in "ab"}


def test_a_watch_ends_when_another_thread_closes_its_client(service: Service, caller: Client, session: str) -> None:
    client = Client(service.url, token_of("approver"))
    seen = threading.Event()

    def watch() -> list[str]:
        found = []
        for ask in client.watch_asks():
            found.append(ask.session_id)
            if ask.session_id == session:
                seen.set()
        return found

    with ThreadPoolExecutor() as threads:
        watching = threads.submit(watch)
        call = threads.submit(lambda: caller.call("bash", {"command": "true"}, session=session, call_id="c1"))
        seen.wait()
        client.close()
        assert session in watching.result()
        caller.cancel(session, "c1")
        assert isinstance(call.exception(), CallError)


def test_what_other_threads_ask_while_a_client_closes_ends(service: Service) -> None:
    def ask(client: Client) -> str:
        while True:
            try:
                client.tools()
            except CancelledError:
                continue  # The next one comes while the client closes, or after it.
            except ToolgateError as error:
                return error.message

    for _ in range(20):
        client = Client(service.url, token_of("caller"))
        with ThreadPoolExecutor() as threads:
            asking = [threads.submit(ask, client) for _ in range(4)]
            client.tools()
            client.close()
            assert {asked.result() for asked in asking} == {"this client was closed"}


def test_a_refused_request_names_its_reason(service: Service) -> None:
    with Client(service.url, "wrong") as client, pytest.raises(RequestError) as refused:
        client.call("bash", {"command": "true"})
    assert refused.value.reason == "UNAUTHENTICATED"
    assert "TOOLGATE_TOKEN" in str(refused.value)


def test_a_token_that_was_given_empty_is_refused_and_no_other_takes_its_place(service: Service) -> None:
    for token in ("", " \n"):
        with pytest.raises(ValueError, match="the token is empty"):
            Client(service.url, token)


def test_an_address_without_a_service_is_reported_in_time() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url, "token", connect_timeout=0.2) as client, pytest.raises(UnreachableError, match="toolgate serve"):
        client.tools()


def test_a_worker_without_a_token_names_the_command_that_creates_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLGATE_TOKEN", raising=False)

    @tool
    def greet(name: str) -> str:
        """Greets a person."""
        return name

    with pytest.raises(ToolgateError, match="toolgate token create --role worker --tool greet"):
        Worker(greet)


def test_tools_have_schemas(caller: Client) -> None:
    tools = {tool.name: tool for tool in caller.tools()}
    assert "command" in tools["bash"].input_schema["properties"]
