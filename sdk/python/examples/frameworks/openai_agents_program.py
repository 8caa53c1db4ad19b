"""An agent of the OpenAI Agents SDK whose commands run at Toolgate."""

import asyncio

from agents import Agent, Model, Runner

from toolgate import AsyncClient
from toolgate.openai_agents import toolgate_tools


async def main(model: str | Model, session: str = "ses_openai_agents") -> str:
    async with AsyncClient() as client:
        tools = await toolgate_tools(client, session=session, only=["bash", "read"])
        agent = Agent(name="release", model=model, tools=[*tools])
        return str((await Runner.run(agent, "Which branch is checked out?")).final_output)


if __name__ == "__main__":
    print(asyncio.run(main("gpt-5")))
