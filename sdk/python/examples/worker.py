"""Brings the tool `deploy`: each environment and service is asked for by itself, and production once more."""

import asyncio
from typing import Literal

from toolgate import Context, serve, tool


@tool(permission="{env}/{service}", always="{env}/*", timeout=600)
async def deploy(env: Literal["dev", "prod"], service: str, ctx: Context) -> str:
    """Deploys a service."""
    ctx.metadata(title=f"{service} → {env}")
    for step in range(3):
        await ctx.output(f"step {step}\n")
        await asyncio.sleep(0.1)
    if env == "prod":
        await ctx.ask("deploy_traffic", [f"prod/{service}"])
    return f"{service} runs in {env}"


if __name__ == "__main__":
    serve(deploy)
