"""An agent of Pydantic AI whose commands run at Toolgate."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models import Model

from toolgate import AsyncClient
from toolgate.pydantic_ai import ToolgateToolset


async def main(model: str | Model, session: str = "ses_pydantic_ai") -> str:
    async with AsyncClient() as client:
        toolset = ToolgateToolset(client, session=session, only=["bash", "read"])
        agent = Agent(model, toolsets=[toolset])
        return (await agent.run("Which branch is checked out?")).output


if __name__ == "__main__":
    print(asyncio.run(main("openai:gpt-5")))
