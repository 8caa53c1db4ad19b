"""The fixed tools of the worker kit, with the Python SDK."""

import asyncio
import os
import time
from pathlib import Path

from toolgate import Ask, Attachment, CallStopped, ChangedError, Context, Plan, SyncContext, ToolResult, serve, tool

FOLDER = Path(os.environ["TOOLGATE_KIT"])


def note(line: str) -> None:
    with open(FOLDER / "ledger", "a") as ledger:
        ledger.write(f"{line}\n")


def is_released(text: str) -> bool:
    return (FOLDER / f"release-{text}").exists()


def version_of(text: str) -> str:
    file = FOLDER / f"version-{text}"
    return file.read_text() if file.exists() else ""


def letters(size: int) -> bytes:
    return bytes(97 + index % 26 for index in range(size))


@tool(permission="{text}")
async def kit_echo(text: str) -> str:
    """Returns the text."""
    note(f"entered {text}")
    return text


@tool
async def kit_write(text: str, bytes: int, file_bytes: int, ctx: Context) -> ToolResult:
    """Writes output and a file."""
    note(f"entered {text}")
    output = letters(bytes)
    for at in range(0, bytes, 16_384):
        await ctx.output(output[at : at + 16_384])
    files = [Attachment(letters(file_bytes), "text/plain", f"{text}.txt")] if file_bytes else []
    return ToolResult(title=text, output=None, attachments=files)


@tool
async def kit_wait(text: str) -> str:
    """Waits until it is released, in the event loop."""
    note(f"entered {text}")
    try:
        while not is_released(text):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note(f"stopped {text}")
        raise
    return text


@tool
def kit_poll(text: str, ctx: SyncContext) -> str:
    """Waits until it is released, in a thread."""
    note(f"entered {text}")
    try:
        while not is_released(text):
            ctx.check()
            time.sleep(0.02)
    except CallStopped:
        note(f"stopped {text}")
        raise
    return text


@tool
async def kit_ask(text: str, tool: str, ctx: Context) -> str:
    """Asks, or makes a call."""
    note(f"entered {text}")
    try:
        if tool == "":
            await ctx.ask("kit_traffic", [text])
        else:
            await ctx.calls([(tool, {})])
    except (asyncio.CancelledError, CallStopped):
        note(f"stopped {text}")
        raise
    except Exception as error:
        return str(error)
    return text


@tool
async def kit_plan(text: str, ctx: Context) -> str:
    """Returns the version that was approved."""
    version = version_of(text)
    if version.encode() != ctx.detail:
        raise ChangedError(f"there is another version of {text}")
    note(f"entered {text}")
    return f"{text} {version}"


@kit_plan.plan
def plan(text: str) -> Plan:
    version = version_of(text)
    return Plan(title=text, asks=[Ask("kit_version", [f"{text} {version}"])], detail=version.encode())


serve(kit_echo, kit_write, kit_wait, kit_poll, kit_ask, kit_plan)
