"""An agent in each framework runs a tool, waits for a person across a kill of the service, and ends with the right result."""

import asyncio
import json
import subprocess
import sys
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from agents import Model, ModelResponse, Usage, set_tracing_disabled
from anthropic import AsyncAnthropic
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai.messages import ModelMessage, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import ModelResponse as PydanticResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from service import Service, token_of

from toolgate import AsyncClient
from toolgate._gen.tool_pb2 import PermissionRequest

sys.path.append(str(Path(__file__).parents[1] / "examples/frameworks"))
import anthropic_program
import langchain_program
import openai_agents_program
import pydantic_ai_program

set_tracing_disabled(True)

Program = Callable[[str, dict[str, Any]], Awaitable[str]]
"""A program whose model calls bash once with the input, and answers with the result of the tool."""


async def run_openai_agents(session: str, input: dict[str, Any]) -> str:
    class Scripted(Model):
        async def get_response(self, *args: Any, **asked: Any) -> ModelResponse:
            results = [item["output"] for item in asked["input"] if isinstance(item, dict) and "output" in item]
            output: Any = ResponseFunctionToolCall(
                type="function_call", call_id="call_openai", name="bash", arguments=json.dumps(input)
            )
            if results:
                content = ResponseOutputText(type="output_text", text=f"it printed {results[0]}", annotations=[])
                output = ResponseOutputMessage(
                    id="msg_1", type="message", role="assistant", status="completed", content=[content]
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **rest: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    return await openai_agents_program.main(Scripted(), session)


async def run_langchain(session: str, input: dict[str, Any]) -> str:
    class Scripted(GenericFakeChatModel):
        def bind_tools(self, *args: Any, **rest: Any) -> Any:
            return self

        def _generate(self, messages: list[Any], *args: Any, **rest: Any) -> Any:
            self.messages = iter([f"it printed {messages[-1].content}"] if messages[-1].type == "tool" else [wanted])
            return super()._generate(messages)

    wanted = AIMessage(content="", tool_calls=[ToolCall(name="bash", args=input, id="call_langchain")])
    return await langchain_program.main(Scripted(messages=iter([])), session)


async def run_pydantic_ai(session: str, input: dict[str, Any]) -> str:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> PydanticResponse:
        results = [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if results:
            return PydanticResponse(parts=[TextPart(f"it printed {results[0]}")])
        return PydanticResponse(parts=[ToolCallPart("bash", input, tool_call_id="call_pydantic")])

    return await pydantic_ai_program.main(FunctionModel(answer), session)


async def run_anthropic(session: str, input: dict[str, Any]) -> str:
    def answer(request: httpx.Request) -> httpx.Response:
        last = json.loads(request.content)["messages"][-1]["content"]
        results = [block["content"] for block in last if isinstance(block, dict) and block["type"] == "tool_result"]
        content: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": input}
        if results:
            content = {"type": "text", "text": f"it printed {results[0]}"}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [content]}
        usage = {"input_tokens": 1, "output_tokens": 1}
        reason = "end_turn" if results else "tool_use"
        return httpx.Response(200, json={**message, "stop_reason": reason, "stop_sequence": None, "usage": usage})

    model = AsyncAnthropic(api_key="none", http_client=httpx.AsyncClient(transport=httpx.MockTransport(answer)))
    return await anthropic_program.main(model, session)


PROGRAMS: dict[str, Program] = {
    "openai_agents": run_openai_agents,
    "langchain": run_langchain,
    "pydantic_ai": run_pydantic_ai,
    "anthropic": run_anthropic,
}


@pytest.fixture(autouse=True)
def environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGATE_URL", service.url)
    monkeypatch.setenv("TOOLGATE_TOKEN", token_of("caller"))


async def asked(approver: AsyncClient, sessions: Collection[str], running: Future[Any]) -> list[PermissionRequest]:
    """Waits for a permission request of each session; raises if the programs end before."""

    async def watch() -> list[PermissionRequest]:
        found: dict[str, PermissionRequest] = {}
        async for ask in approver.watch_asks():
            if ask.session_id in sessions:
                found[ask.session_id] = ask
            if len(found) == len(sessions):
                break
        return list(found.values())

    watching = asyncio.ensure_future(watch())
    await asyncio.wait([watching, running], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        watching.cancel()
        raise AssertionError(f"ended without a permission request: {running.result()}")
    return watching.result()


def test_each_program_waits_for_a_person_across_a_kill_of_the_service(service: Service, session: str) -> None:
    async def main() -> list[str]:
        sessions = {f"{session}_{name}": name for name in PROGRAMS}
        async with AsyncClient(service.url, token_of("approver")) as approver:
            running = asyncio.gather(
                *(PROGRAMS[name](each, {"command": f"echo ran {name}"}) for each, name in sessions.items())
            )
            asks = await asked(approver, sessions, running)
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
            for ask in asks:
                await approver.reply(ask, "once")
            return await running

    found = asyncio.run(main())
    assert [text.strip() for text in found] == [f"it printed ran {name}" for name in PROGRAMS]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_refusal_reaches_the_model(service: Service, session: str, name: str) -> None:
    async def main() -> str:
        async with AsyncClient(service.url, token_of("approver")) as approver:
            running = asyncio.ensure_future(PROGRAMS[name](session, {"command": "git push"}))
            for ask in await asked(approver, [session], running):
                await approver.reply(ask, "reject", message="not today")
            return await running

    assert "not today" in asyncio.run(main())


def test_the_package_imports_no_framework() -> None:
    frameworks = ["agents", "langchain_core", "pydantic_ai", "anthropic"]
    code = f"import sys, toolgate, toolgate.testing; print([name for name in {frameworks} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
