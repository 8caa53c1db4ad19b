"""Runs a command through Toolgate as an agent, and approves it as a person.

    python client.py 'git status' [CALL_ID]

Run it twice: the second run attaches to the call of the first, prints the same, and runs nothing. See ../README.md.
"""

import asyncio
import os
import sys

import grpc
from opencode.tool.v1 import permission_service_pb2 as permission_service
from opencode.tool.v1 import permission_service_pb2_grpc as permission_rpc
from opencode.tool.v1 import session_service_pb2 as session_service
from opencode.tool.v1 import session_service_pb2_grpc as session_rpc
from opencode.tool.v1 import tool_pb2 as tool
from opencode.tool.v1 import tool_service_pb2 as tool_service
from opencode.tool.v1 import tool_service_pb2_grpc as tool_rpc

SESSION = "ses_example_python"


async def run_as_agent(channel, metadata, store_id, command, call_id):
    """Runs a call and prints its events, across lost connections, to its end."""
    tools = tool_rpc.ToolServiceStub(channel)
    # Both ids are ours, so the same request again attaches to the call; in another store it is refused.
    request = tool_service.ExecuteToolRequest(
        session_id=SESSION, call_id=call_id, tool="bash", expected_store_id=store_id
    )
    request.input.update({"command": command, "description": "Run a command"})
    while True:
        try:
            async for response in tools.ExecuteTool(request, metadata=metadata):
                if response.HasField("event"):  # otherwise it is a heartbeat
                    print_event(response.event)
                request.after_seq = response.last_seq
            return
        except grpc.aio.AioRpcError as error:
            await pause_or_raise(error, f"going on after #{request.after_seq}")


async def answer_as_person(channel, metadata):
    """Approves whatever the session asks, until it is cancelled."""
    permissions = permission_rpc.PermissionServiceStub(channel)
    request = permission_service.WatchPermissionsRequest(session_id=SESSION)
    while True:
        try:
            # Each stream starts with all open asks, so after a cut nothing is missed.
            async for response in permissions.WatchPermissions(request, metadata=metadata):
                if response.event.HasField("permission_asked"):
                    await approve(permissions, metadata, response.event.permission_asked)
        except grpc.aio.AioRpcError as error:
            await pause_or_raise(error, "watching again")


async def approve(permissions, metadata, ask):
    print(f"person: {ask.permission} {' '.join(ask.display)} may run once", flush=True)
    answer = tool.PermissionResponse(
        session_id=ask.session_id,
        permission_id=ask.id,
        reply=tool.PERMISSION_REPLY_ONCE,
        expected_digest=ask.digest,  # what was shown is what is approved
    )
    try:
        await permissions.RespondToPermission(answer, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.FAILED_PRECONDITION:
            raise
        print(f"person: {error.details()}", flush=True)  # somebody else was first


def print_event(event):
    kind = event.WhichOneof("event")
    if kind == "part":
        print(f"#{event.seq} {event.part.WhichOneof('state')}", flush=True)
    elif kind == "output":
        print(f"#{event.seq} output: {event.output.data.decode(errors='replace').rstrip()}", flush=True)
    elif kind == "permission_asked":
        print(f"#{event.seq} asks: {event.permission_asked.permission}", flush=True)
    elif kind == "permission_settled":
        print(f"#{event.seq} answered by {event.permission_settled.by}", flush=True)


async def pause_or_raise(error, what):
    """A lost connection and a server that restarts are UNAVAILABLE; anything else is an answer."""
    if error.code() != grpc.StatusCode.UNAVAILABLE:
        raise error
    print(f"connection lost; {what}", file=sys.stderr, flush=True)
    await asyncio.sleep(1)


def bearer(variable):
    return (("authorization", f"Bearer {os.environ[variable]}"),)


async def main(command, call_id="call_1"):
    agent, person = bearer("TOOLGATE_CALLER_TOKEN"), bearer("TOOLGATE_APPROVER_TOKEN")
    address = os.environ.get("TOOLGATE_URL", "http://127.0.0.1:7420").removeprefix("http://")
    # Without pings a connection that died silently looks like a quiet one.
    async with grpc.aio.insecure_channel(address, options=[("grpc.keepalive_time_ms", 20_000)]) as channel:
        sessions = session_rpc.SessionServiceStub(channel)
        created = await sessions.CreateSession(
            session_service.CreateSessionRequest(session_id=SESSION), metadata=agent
        )
        async with asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(answer_as_person(channel, person))
            await run_as_agent(channel, agent, created.store_id, command, call_id)
            answering.cancel()


asyncio.run(main(*sys.argv[1:]))
