"""A tool runner of the Anthropic SDK whose commands run at Toolgate."""

import asyncio

from anthropic import AsyncAnthropic

from toolgate import AsyncClient
from toolgate.anthropic import toolgate_tools


async def main(model: AsyncAnthropic, session: str = "ses_anthropic") -> str:
    async with AsyncClient() as client:
        runner = model.beta.messages.tool_runner(
            model="claude-sonnet-5",
            max_tokens=1024,
            tools=await toolgate_tools(client, session=session, only=["bash", "read"]),
            messages=[{"role": "user", "content": "Which branch is checked out?"}],
        )
        message = await runner.until_done()
        return "".join(block.text for block in message.content if block.type == "text")


if __name__ == "__main__":
    print(asyncio.run(main(AsyncAnthropic())))
