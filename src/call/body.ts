import type { ToolOutput, ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { newId } from "../core/ids.ts";
import type { Tool, ToolContext, ToolResult, TraceContext } from "../tool/tool.ts";
import { askInBody } from "./ask-in-body.ts";
import { hookEnvironment } from "./call-hooks.ts";
import { createDeadline, orAborted } from "./deadline.ts";
import { trafficRecord } from "./decision-records.ts";
import { CallEnd, CallGone } from "./ends.ts";
import type { Engine } from "./engine.ts";
import { ensureRecorded, recordInBackground } from "./first-step.ts";
import { type CallOutput, createCallOutput } from "./output.ts";
import { planContext } from "./prepare.ts";
import { createProgress } from "./progress.ts";
import type { Approved, Running } from "./running.ts";
import { isLeaseValid } from "./runs.ts";
import { outsideSlot } from "./slots.ts";
import { storeBytes } from "./spill.ts";

/** Result of a body and the output that it wrote. */
export interface Returned {
  result: ToolResult;
  output: CallOutput;
}

/** Input, plan and answers of an entered body. */
type EnteredWith = Pick<Approved, "input" | "plan" | "outside" | "files" | "answers">;

/** One entered body. */
interface Body {
  readonly tool: Tool;
  readonly approved: EnteredWith;
  readonly deadline: ReturnType<typeof createDeadline>;
  readonly progress: ReturnType<typeof createProgress>;
  readonly output: CallOutput;
}

/** Step 8, execute: enters the body under the call's own signal and deadline; the request that made the call may end. */
export async function executeBody(engine: Engine, call: Running, tool: Tool, approved: EnteredWith): Promise<Returned> {
  // The lease of a process that was suspended after the start mark may have lapsed; nothing may run then.
  if (!isLeaseValid(engine, call)) throw new CallGone();
  const body = openBody(engine, call, tool, approved);
  call.progress = body.progress;
  call.output = body.output;
  try {
    const result = await call.observed.step("execute", (trace) =>
      orAborted(tool.execute(approved.input, approved.plan, toolContext(engine, call, body, trace)), call.signal),
    );
    call.signal.throwIfAborted();
    await body.output.end();
    return { result, output: body.output };
  } finally {
    body.deadline.clear();
    body.progress.stop();
  }
}

/** Starts the deadline, and opens output and progress, which abort the call if its events are fenced off. */
function openBody({ limits, outputs, store }: Engine, call: Running, tool: Tool, approved: EnteredWith): Body {
  const { ref, spec } = call.record;
  const deadline = createDeadline(spec.timeoutMs || approved.plan.timeoutMs || limits.timeoutMs, (ms) =>
    call.controller.abort(
      new CallEnd(
        ToolErrorReason.TIMEOUT,
        `The call took longer than ${ms} ms and was stopped. Give it a longer timeout_ms, or less to do.`,
      ),
    ),
  );
  const record = async (events: (ToolOutput | ToolProgress)[]) => {
    await ensureRecorded(call);
    if (await store.recordEvents(call.fence, events)) return;
    call.controller.abort(new CallGone());
    throw new CallGone();
  };
  const output = createCallOutput({
    root: ref.root,
    callId: ref.callId,
    id: newId("out", store.now()),
    store: {
      async append(root, id, data) {
        await ensureRecorded(call);
        await outputs.append(root, id, data);
      },
    },
    limit: limits.outputBytes,
    keep: tool.keep,
    record,
  });
  return { tool, approved, deadline, progress: createProgress(ref.callId, (event) => record([event])), output };
}

/** Context in which a body runs. */
function toolContext(
  engine: Engine,
  call: Running,
  { tool, approved, deadline, progress, output }: Body,
  trace: TraceContext | undefined,
): ToolContext {
  const { outputs, store } = engine;
  const { ref, part, spec } = call.record;
  return {
    ...planContext(engine, call.record, call.opened, (cwd) => hookEnvironment(call.hooks, cwd)),
    messageId: part.messageId,
    model: { providerId: spec.providerId, modelId: spec.modelId },
    signal: call.signal,
    answers: approved.answers ?? [],
    rootSessionId: ref.root,
    outside: approved.outside,
    files: approved.files,
    reads: {
      get: (path) => store.getRead(ref.root, path),
      async record(path, sha256) {
        // First, so that the batch can restore the file also if the step below fails.
        if (tool.changeForm !== undefined) call.gate?.wrote(path, sha256);
        if (call.firstStep && !call.firstStep.taken) return void call.firstStep.reads.set(path, sha256);
        await ensureRecorded(call);
        await store.recordRead(ref.root, path, sha256);
      },
    },
    state: {
      async get(name) {
        const value = await store.getState(ref, name);
        return value === undefined ? undefined : JSON.parse(value);
      },
      async set(name, value) {
        await ensureRecorded(call);
        await store.setState(ref, name, JSON.stringify(value));
      },
    },
    outputs: {
      read: (id, offset, limit) => outputs.read(ref.root, id, offset, limit),
      store: (data) => storeBytes(engine, call, data),
      async remove(id) {
        await ensureRecorded(call);
        await outputs.remove(ref.root, id);
      },
    },
    metadata(update) {
      recordInBackground(call);
      progress.update(update);
    },
    output(chunk) {
      recordInBackground(call);
      return output.write(chunk);
    },
    async calls(children, options) {
      await ensureRecorded(call);
      const { record, opened, signal } = call;
      const parent = { record, opened, signal, run: call, ...(trace && { trace }) };
      return await outsideSlot(engine, call, () =>
        deadline.whilePaused(() => engine.makeCalls(engine, parent, children, options)),
      );
    },
    async ask(ask) {
      await ensureRecorded(call);
      await deadline.whilePaused(() => askInBody(engine, call, tool, approved.plan, ask));
    },
    recordTraffic(traffic) {
      call.reports = [...(call.reports ?? []), trafficRecord(call.record, traffic)];
    },
    extra: part.metadata ?? {},
    ...(trace && { trace }),
  };
}
