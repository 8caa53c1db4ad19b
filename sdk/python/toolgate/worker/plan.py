"""Answers the service's question for the intended effect of a call."""

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

from pydantic import ValidationError

from toolgate._gen.worker_pb2 import WorkerAsk, WorkerPlan, WorkerPlanned
from toolgate._json import from_struct, to_struct
from toolgate.context import valid_text
from toolgate.tools import Ask, Plan, Tool
from toolgate.worker.body import MAX_TITLE, checked, described, short


def planned(tool: Tool[..., Any] | None, plan: WorkerPlan, bodies: asyncio.AbstractEventLoop) -> Future[WorkerPlanned]:
    """Runs a tool's planner: in the event loop of bodies if it is asynchronous, in a thread otherwise."""
    done: Future[WorkerPlanned] = Future()
    if tool is None:
        done.set_result(_problem(plan, f"the worker has no tool {plan.call.tool}"))
    elif asyncio.iscoroutinefunction(tool.planner):
        asyncio.run_coroutine_threadsafe(_plan_async(tool, plan, done), bodies)
    else:
        threading.Thread(target=_plan_sync, args=(tool, plan, done), name=f"{tool.name} plan", daemon=True).start()
    return done


async def _plan_async(tool: Tool[..., Any], plan: WorkerPlan, done: Future[WorkerPlanned]) -> None:
    try:
        made = await tool.make_plan(tool.validate(from_struct(plan.call.input)))
        done.set_result(_message(plan, made))
    except Exception as error:
        done.set_result(_failed(plan, error))


def _plan_sync(tool: Tool[..., Any], plan: WorkerPlan, done: Future[WorkerPlanned]) -> None:
    try:
        made = tool.make_plan(tool.validate(from_struct(plan.call.input)))
        done.set_result(_message(plan, made))
    except Exception as error:
        done.set_result(_failed(plan, error))


def _message(plan: WorkerPlan, made: Plan) -> WorkerPlanned:
    message = WorkerPlanned(
        plan_id=plan.plan_id,
        title=valid_text(made.title)[:MAX_TITLE],
        asks=[_ask(each) for each in made.asks],
        preview=made.preview,
        detail=made.detail,
        timeout_ms=round(made.timeout * 1000),
        problem=short(made.problem),
    )
    return checked(message)


def _ask(ask: Ask) -> WorkerAsk:
    metadata = None if ask.metadata is None else to_struct(ask.metadata)
    return WorkerAsk(permission=ask.permission, patterns=ask.patterns, always=ask.always, metadata=metadata)


def _failed(plan: WorkerPlan, error: Exception) -> WorkerPlanned:
    text = described(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
    return _problem(plan, text)


def _problem(plan: WorkerPlan, text: str) -> WorkerPlanned:
    return WorkerPlanned(plan_id=plan.plan_id, problem=short(text))
