"""Lists and calls tools with the Python client, in the protocol version that its arguments choose, and prints what it gets."""

import json
import sys

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters


async def main(mode: str, target: str, *command: str) -> None:
    server = StdioServerParameters(command=target, args=list(command)) if command else target
    progress: list[str] = []

    async def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
        progress.append(message or "")

    async with Client(server, mode=mode, read_timeout_seconds=30) as client:
        tools = (await client.list_tools()).tools
        text = await client.call_tool("test_simple_text", {})
        waiting = await client.call_tool("bash", {"command": f"echo {mode}", "description": "say"}, progress_callback=on_progress)
        print(
            json.dumps(
                {
                    "version": client.protocol_version,
                    "tools": sorted(tool.name for tool in tools),
                    "text": text.content[0].text,
                    "waiting": waiting.content[0].text,
                    "isError": waiting.is_error,
                    "progress": progress,
                }
            )
        )


anyio.run(main, *sys.argv[1:])
