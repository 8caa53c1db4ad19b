"""`toolgate.testing.gate`, used as the tests of a tool use it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from service import COMMAND

from toolgate import CallError, Context, ToolgateError, tool
from toolgate.testing import Gate, gate

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from worker import deploy

entered: list[str] = []


@tool(permission="{env}")
async def count(env: Literal["dev", "prod"], ctx: Context) -> str:
    """Counts its runs."""
    entered.append(env)
    await ctx.output("counting\n")
    return str(entered.count(env))


@pytest.fixture(scope="module")
def service() -> Iterator[Gate]:
    policy = {"deploy": {"dev/*": "allow"}, "count": "allow"}
    with gate(deploy, count, policy=policy, permissions=["deploy_traffic"], command=COMMAND) as started:
        yield started


def test_a_call_asks_by_the_policy_and_gets_the_answers_of_the_test(service: Gate) -> None:
    before = len(service.asked)
    result = service.call("deploy", {"env": "dev", "service": "api"}, answers=["once"])
    assert (result.output, result.title) == ("api runs in dev", "api to dev")
    result = service.call("deploy", {"env": "prod", "service": "api"}, answers=["once", "once"])
    assert result.output == "api runs in prod"
    asked = [(ask.permission, list(ask.patterns)) for ask in service.asked[before:]]
    traffic = "deploy_traffic"
    assert asked == [(traffic, ["dev/api"]), ("deploy", ["prod/api"]), (traffic, ["prod/api"])]


def test_a_refusal_ends_the_call_and_an_unexpected_request_fails_the_test(service: Gate) -> None:
    with pytest.raises(CallError) as refused:
        service.call("deploy", {"env": "prod", "service": "api"}, answers=["reject"])
    assert (refused.value.reason, refused.value.effects) == ("REJECTED", "NONE")
    with pytest.raises(AssertionError, match="deploy asks for deploy_traffic dev/api: give another answer"):
        service.call("deploy", {"env": "dev", "service": "api"})


def test_it_survives_a_kill_and_has_a_workspace_of_its_own(service: Gate) -> None:
    (service.workspace / "notes.txt").write_text("hello")
    assert "hello" in service.call("read", {"filePath": "notes.txt"}).output
    url = service.url
    assert service.call("count", {"env": "dev"}, session="ses_count", call_id="c1").output == "1"
    service.kill()
    service.start()
    assert service.url == url
    assert service.call("count", {"env": "dev"}, session="ses_count", call_id="c1").output == "1"
    assert service.client.call("count", {"env": "prod"}).output == "1"
    assert entered == ["dev", "prod"]


def test_a_mistake_is_reported_with_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        pytest.raises(ToolgateError, match=r"line .*permission.bash.*: must be"),
        gate(command=COMMAND, policy={"bash": "perhaps"}),
    ):  # type: ignore[dict-item]
        pass
    monkeypatch.delenv("TOOLGATE_COMMAND", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolgateError, match="npm install --global toolgate"), gate():
        pass
