"""An agent of LangChain whose commands run at Toolgate."""

import asyncio

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel

from toolgate import AsyncClient
from toolgate.langchain import toolgate_tools


async def main(model: str | BaseChatModel, session: str = "ses_langchain") -> str:
    async with AsyncClient() as client:
        agent = create_agent(model, await toolgate_tools(client, session=session, only=["bash", "read"]))
        state = await agent.ainvoke({"messages": [("user", "Which branch is checked out?")]})
        return str(state["messages"][-1].content)


if __name__ == "__main__":
    print(asyncio.run(main("openai:gpt-5")))
