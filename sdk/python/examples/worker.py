from typing import Literal

from toolgate import Context, serve, tool


@tool(permission="{env}/{service}", always="{env}/*", title="{service} to {env}", timeout=600)
async def deploy(env: Literal["dev", "prod"], service: str, ctx: Context) -> str:
    """Deploys a service."""
    await ctx.output("rolling\n")
    await ctx.ask("deploy_traffic", [f"{env}/{service}"])
    return f"{service} runs in {env}"


if __name__ == "__main__":
    serve(deploy)
