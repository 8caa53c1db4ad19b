"""A worker whose tools run until they are cancelled, and write when they were."""

import asyncio
import time
from pathlib import Path

from toolgate import Context, SyncContext, serve, tool


def stopped() -> None:
    with (Path.home() / "stopped").open("a") as file:
        file.write(f"{time.time() * 1000}\n")


@tool
async def echo_nap(ctx: Context) -> None:
    """Sleeps in the event loop."""
    try:
        await ctx.output("entered")
        await asyncio.sleep(1000)
    finally:
        stopped()


@tool
def echo_grind(ctx: SyncContext) -> None:
    """Works in a thread, and checks each millisecond."""
    try:
        ctx.output("entered")
        while True:
            ctx.check()
            time.sleep(0.001)
    finally:
        stopped()


serve(echo_nap, echo_grind)
