import type { ToolOutput, ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { questionPermission } from "../core/ask.ts";
import { newId } from "../core/ids.ts";
import type { Tool, ToolContext, ToolResult, TraceContext } from "../tool/tool.ts";
import { createPauses, pausedMsOf } from "./adopted-body.ts";
import { askInBody } from "./ask-in-body.ts";
import { hookEnvironment } from "./call-hooks.ts";
import { durableState, trafficRecord, whileStoreAway } from "./call-record.ts";
import { stopIfCancelled } from "./cancel.ts";
import { CallEnd, CallGone } from "./ends.ts";
import { type Engine, isLeaseValid } from "./engine.ts";
import { createProgress } from "./observer.ts";
import { type CallOutput, createCallOutput } from "./output.ts";
import { aboutCall, planContext } from "./prepare.ts";
import { type Approved, ensureRecorded, type Running, recordInBackground } from "./running.ts";
import { storeBytes } from "./stored-outputs.ts";
import { outsideSlot } from "./waiting.ts";

/** Result of a body and the output that it wrote. */
export interface Returned {
  result: ToolResult;
  output: CallOutput;
}

/** Input, plan and answers of an entered body. */
type EnteredWith = Pick<Approved, "input" | "plan" | "outside" | "files" | "heldHosts" | "answers">;

/** One entered body. */
interface Body {
  readonly tool: Tool;
  readonly approved: EnteredWith;
  readonly deadline: ReturnType<typeof createDeadline>;
  readonly progress: ReturnType<typeof createProgress>;
  readonly output: CallOutput;
}

/** Bytes of a stored output that are copied at a time. */
const copiedBytes = 256 * 1024;

/** Step 8, execute: enters the body under the call's own signal and deadline; the request that made the call may end. */
export async function executeBody(engine: Engine, call: Running, tool: Tool, approved: EnteredWith): Promise<Returned> {
  // The lease of a process that was suspended after the start mark may have lapsed; nothing may run then.
  if (!isLeaseValid(engine, call)) throw new CallGone();
  const body = openBody(engine, call, tool, approved);
  call.progress = body.progress;
  call.output = body.output;
  try {
    const former = call.former?.output;
    if (former) await continueOutput(engine, call, body.output, former);
    const result = await call.observed.step("execute", (trace) =>
      orAborted(tool.execute(approved.input, approved.plan, toolContext(engine, call, body, trace)), call.signal),
    );
    call.signal.throwIfAborted();
    if (call.isResumed) await whileStoreAway(engine, call, () => stopIfCancelled(engine, call));
    await body.output.end();
    return { result, output: body.output };
  } finally {
    body.deadline.clear();
    if (!call.signal.aborted) await body.progress.flush();
    body.progress.stop();
  }
}

/** Continues the output of an earlier run in another one, since a replica that was suspended may still append to that. */
async function continueOutput(
  { outputs }: Engine,
  { record: { ref } }: Running,
  output: CallOutput,
  { id, bytes }: { id: string; bytes: number },
): Promise<void> {
  for (let at = 0; at < bytes; ) {
    const found = await outputs.read(ref.root, id, at, Math.min(bytes - at, copiedBytes));
    if (!found || found.data.length === 0) throw new Error(`output ${id} ends at ${at} of ${bytes} bytes`);
    await output.restore(found.data);
    at += found.data.length;
  }
}

/** Starts the deadline, and opens output and progress, which abort the call if its events are fenced off. */
function openBody(engine: Engine, call: Running, tool: Tool, approved: EnteredWith): Body {
  const { limits, outputs, store } = engine;
  const { ref, spec } = call.record;
  const timeoutMs = spec.timeoutMs || approved.plan.timeoutMs || limits.timeoutMs;
  const passed = (ms: number) =>
    call.controller.abort(
      new CallEnd(
        ToolErrorReason.TIMEOUT,
        `The call took longer than ${ms} ms and was stopped. Give it a longer timeout_ms, or less to do.`,
      ),
    );
  const timer = createDeadline(timeoutMs, passed, spentMs(engine, call, tool));
  const pauses = call.record.remote && createPauses(engine, call);
  const whilePaused: typeof timer.whilePaused = (work) => timer.whilePaused(() => (pauses ? pauses(work) : work()));
  const deadline = { ...timer, whilePaused };
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
  const progress = createProgress(ref.callId, (event) => record([event]));
  Object.assign(progress.shown, call.former?.shown);
  return { tool, approved, deadline, progress, output };
}

/** Returns the part of its deadline that a call has spent before it was resumed. The deadline of a body that only makes calls is paused meanwhile. */
function spentMs({ store }: Engine, { isResumed, record }: Running, tool: Tool): number {
  const { part } = record;
  if (!isResumed || !(record.remote || tool.durable?.survives) || part.state.case !== "running") return 0;
  const now = store.now();
  return now - (part.state.value.time?.start ?? now) - (record.remote ? pausedMsOf(record, now) : 0);
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
    ...planContext(engine, aboutCall(call.record, tool), call.opened, (cwd) => hookEnvironment(call.hooks, cwd)),
    messageId: part.messageId,
    model: { providerId: spec.providerId, modelId: spec.modelId },
    signal: call.signal,
    answers: approved.answers ?? [],
    rootSessionId: ref.root,
    outside: approved.outside,
    files: approved.files,
    ...(approved.heldHosts && { heldHosts: approved.heldHosts }),
    reads: {
      get: (path) => whileStoreAway(engine, call, () => store.getRead(ref.root, path)),
      async record(path, sha256) {
        if (tool.changeForm !== undefined) await call.gate?.beforeWrite([{ path, sha256 }]);
        if (call.firstStep && !call.firstStep.taken) return void call.firstStep.reads.set(path, sha256);
        await ensureRecorded(call);
        await whileStoreAway(engine, call, () => store.recordRead(ref.root, path, sha256));
      },
    },
    beforeWrite: async (writes) => await call.gate?.beforeWrite(writes),
    durable: durableState(engine, call),
    state: {
      async get(name) {
        const value = await whileStoreAway(engine, call, () => store.getState(ref, name));
        return value === undefined ? undefined : JSON.parse(value);
      },
      async set(name, value) {
        await ensureRecorded(call);
        await whileStoreAway(engine, call, () => store.setState(ref, name, JSON.stringify(value)));
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
      return output.write(typeof chunk === "string" ? Buffer.from(chunk) : chunk);
    },
    async calls(children, options) {
      await ensureRecorded(call);
      const { record, opened, signal } = call;
      const parent = { record, opened, signal, run: call, ...(trace && { trace }) };
      return await outsideSlot(engine, call, () =>
        deadline.whilePaused(() => engine.makeCalls(engine, parent, children, options)),
      );
    },
    async ask(ask, preview, key) {
      await ensureRecorded(call);
      await deadline.whilePaused(() => askInBody(engine, call, { tool, plan: approved.plan }, { ask, key, preview }));
    },
    async question(questions) {
      await ensureRecorded(call);
      const patterns = [...new Set(questions.map(({ question = "" }) => question))];
      const ask = { permission: questionPermission, patterns, refusable: true } as const;
      try {
        return await deadline.whilePaused(() =>
          askInBody(engine, call, { tool, plan: approved.plan }, { ask, questions }),
        );
      } catch (error) {
        if (error instanceof CallEnd && !call.signal.aborted) return undefined;
        throw error;
      }
    },
    recordTraffic(traffic) {
      call.reports = [...(call.reports ?? []), trafficRecord(call.record, traffic)];
    },
    ...(call.record.remote && {
      remote: {
        mark: call.record.remote,
        isAdopted: call.isResumed === true,
        storedBytes: call.former?.output?.bytes ?? 0,
        files: call.former?.files ?? [],
        async stored() {
          await output.end();
          return output.size();
        },
      },
    }),
    extra: part.metadata ?? {},
    ...(trace && { trace }),
  };
}

/** Resolves with the work of a body. After an abort it gives the body 5 s to stop, then throws without it. */
async function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  let onAbort: (() => void) | undefined;
  const abandoned = new Promise<never>((_, reject) => {
    onAbort = () => {
      timer = setTimeout(() => reject(signal.reason), 5_000);
    };
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
  try {
    return await Promise.race([work, abandoned]);
  } finally {
    clearTimeout(timer);
    if (onAbort) signal.removeEventListener("abort", onAbort);
  }
}

/** Creates a deadline of which some time may be spent already. It is paused while the body waits for approvers or child calls. */
function createDeadline(ms: number, passed: (ms: number) => void, spentMs = 0) {
  let left = Math.max(0, ms - spentMs);
  let since = performance.now();
  let timer: NodeJS.Timeout | undefined = setTimeout(passed, left, ms);
  let pauses = 0;
  return {
    async whilePaused<T>(work: () => Promise<T>): Promise<T> {
      pauses += 1;
      if (pauses === 1) {
        clearTimeout(timer);
        left -= performance.now() - since;
      }
      try {
        return await work();
      } finally {
        pauses -= 1;
        if (pauses === 0 && timer) {
          since = performance.now();
          timer = setTimeout(passed, Math.max(0, left), ms);
        }
      }
    },
    clear(): void {
      clearTimeout(timer);
      timer = undefined;
    },
  };
}
