import { setTimeout as delay } from "node:timers/promises";
import type { JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { ToolOutput, ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import { type DecisionRecord, PermissionAction } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type PermissionRequest, ToolErrorReason, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { JudgedBy } from "../approval/judge-asks.ts";
import type { Permissions } from "../approval/permissions.ts";
import type { AskRecord } from "../approval/ports.ts";
import { canonicalJson } from "../core/canonical-json.ts";
import { newId } from "../core/ids.ts";
import type { Logger } from "../core/logger.ts";
import { RequestError } from "../core/request-error.ts";
import { workspaceRoot } from "../core/workspace-root.ts";
import type { Layers } from "../policy/model.ts";
import type { Subject } from "../policy/subject.ts";
import { HookFailure } from "../tool/errors.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import { similar } from "../tool/similar.ts";
import type { Plan, PlanContext, Tool, ToolContext, ToolResult, TraceContext } from "../tool/tool.ts";
import { createAsking, isOnce, nothingAsked } from "./asking.ts";
import { createCallHooks } from "./call-hooks.ts";
import type { createChildren } from "./children.ts";
import { createDeadline, orAborted } from "./deadline.ts";
import { allowed, deniedBy } from "./decided.ts";
import { noteOfEdit } from "./edit.ts";
import { CallEnd, type CallFailure, CallGone, callFailure, denied } from "./ends.ts";
import { fileParts } from "./file-parts.ts";
import { createKept } from "./kept.ts";
import type { CallObserver } from "./observer.ts";
import { type CallOutput, createCallOutput } from "./output.ts";
import { type Judged, maxRepeats, type Planning } from "./planning.ts";
import type { CallRecord, CallStore, OutputStore } from "./ports.ts";
import { createProgress } from "./progress.ts";
import { fenceOf, type Hold, type Ready, type Running, subjectFor, subjectOf } from "./running.ts";
import type { OpenSession } from "./sessions.ts";
import { completed, failed, inputOf, isTerminal, prepared, running } from "./state.ts";

export interface ExecutorLimits {
  outputBytes: number;
  timeoutMs: number;
  maxTimeoutMs: number;
  askMs: number;
  openAsks: number;
}

export type Executor = ReturnType<typeof createExecutor>;

/** The life of one call, from acceptance to its terminal state. */
export function createExecutor({
  store,
  outputs,
  permissions,
  asksOf,
  planning,
  layersFor,
  registry,
  hooks,
  limits,
  unattended,
  observer,
  makeCalls,
  log,
}: {
  store: CallStore;
  outputs: OutputStore;
  permissions: Permissions;
  asksOf(call: CallRecord["ref"]): Promise<AskRecord[]>;
  planning: Planning;
  layersFor(subject: Pick<Subject, "session" | "ancestors" | "agent">): Layers;
  registry: Registry;
  hooks: HookChain;
  limits: ExecutorLimits;
  unattended: "wait" | "deny";
  observer: CallObserver;
  /** Makes calls for a tool. */
  makeCalls: ReturnType<typeof createChildren>;
  log: Logger;
}) {
  const kept = createKept({ outputs, now: store.now });
  const { answersTo, askFor, askInBody, note, settledAll, refresh } = createAsking({
    store,
    permissions,
    asksOf,
    planning,
    kept,
    limits,
    unattended,
  });

  /**
   * Runs a call that we hold the lease of. It never throws: whatever happens becomes the call's state, or is not ours to
   * write. Returns the call as it ended, if this run is what ended it.
   */
  async function run(
    record: CallRecord,
    opened: OpenSession,
    controller: AbortController,
    hold: Hold,
    ready?: Ready,
  ): Promise<ToolPart | undefined> {
    const observed = observer.began(record);
    const call: Running = {
      record,
      opened,
      controller,
      signal: controller.signal,
      fence: fenceOf(record),
      hold,
      observed,
      hooks: createCallHooks(hooks, record.part, {
        said: record.hooked,
        keep: (hooked) => note(fenceOf(record), { hooked }),
        newId: () => newId("per", store.now()),
        now: store.now,
      }),
    };
    try {
      const tool = ready?.tool ?? resolve(record, opened);
      call.tool = tool;
      await prepareInput(call);
      const { input, plan, outside } = ready ?? (await approve(call, tool));
      const result = await execute(call, tool, input, plan, outside);
      return await settle(call, plan, result);
    } catch (cause) {
      return await end(call, cause);
    } finally {
      observed.over(call.record.part);
    }
  }

  /**
   * Steps 1 to 6 for a call that is about to be accepted: what is allowed without a person or a grant can be accepted and
   * started in one step. Undefined if anything is in the way; then `run` takes the steps one by one and says what.
   */
  async function prepare(
    call: Pick<CallRecord, "ref" | "part" | "spec">,
    opened: OpenSession,
  ): Promise<Ready | undefined> {
    // What hooks make of a call is stored before it is planned, and theirs to do once.
    if (hooks.has("tool.execute.before", "shell.env")) return undefined;
    try {
      const tool = resolve(call, opened);
      const input = decode(tool, call);
      const subject = subjectFor(opened, call.part.agent, tool);
      const layers = layersFor(subject);
      // How many such calls came before it only the step knows that accepts it: `maxRepeats`.
      const by: JudgedBy = { layers, grants: "none" };
      const judged = await planning.judge(tool, input, planContext(call, opened, noEnvironment), subject, 0, by);
      if (judged.verdict.action !== PermissionAction.ALLOW) return undefined;
      const { problem } = await planning.inspect(judged, layers);
      if (problem) return undefined;
      return {
        tool,
        input,
        ...judged,
        start: running(call.part, judged.plan.title, store.now()),
        decision: allowed(call, judged),
        maxRepeats,
      };
    } catch {
      return undefined;
    }
  }

  /** 1. The registration that serves now; it is captured, later changes do not touch this call. */
  function resolve({ part, spec }: Pick<CallRecord, "part" | "spec">, opened: OpenSession): Tool {
    const workspace = workspaceRoot(opened.workspace.name);
    const tool = registry.get(part.tool, workspace);
    if (!tool) {
      const known = registry.list(workspace).map(({ name }) => name);
      const [meant] = similar(part.tool, known, 1);
      const hint = meant === undefined ? "" : ` Did you mean "${meant}"?`;
      throw new CallEnd(
        ToolErrorReason.UNKNOWN_TOOL,
        `There is no tool "${part.tool}".${hint} Use one of: ${known.join(", ")}.`,
      );
    }
    if (spec.definitionId !== "" && spec.definitionId !== tool.definition.definitionId) {
      throw new CallEnd(
        ToolErrorReason.STALE_TOOL,
        `The tool "${part.tool}" has changed since it was offered. List the tools again and repeat the call as it is now.`,
      );
    }
    return tool;
  }

  /** 2. What the hooks before a call leave as its input is stored once, and never replaced: also another replica plans with it. */
  async function prepareInput(call: Running): Promise<void> {
    const { part, prepared: isPrepared } = call.record;
    if (isPrepared || part.state.case !== "pending") return;
    const input = inputOf(part);
    const args = await call.hooks.before(input);
    if (args === undefined) return;
    const changed = canonicalJson(args) === canonicalJson(input) ? undefined : prepared(part, args);
    const step = { fence: call.fence, part: changed };
    while ((await store.prepareCall(step).catch(unlessAway(call))) === undefined);
    await refresh(call);
  }

  /** 3. Invalid input never reaches the tool. */
  function decode(tool: Tool, { part, spec }: Pick<CallRecord, "part" | "spec">): unknown {
    if (spec.timeoutMs > limits.maxTimeoutMs) {
      throw new CallEnd(
        ToolErrorReason.INVALID_INPUT,
        `timeout_ms is ${spec.timeoutMs}, over the limit of ${limits.maxTimeoutMs}. Use a shorter one.`,
      );
    }
    return tool.decode(inputOf(part));
  }

  /** 4 to 7. Plans and judges, waits for people where policy says so, and does all of it again until what is allowed is what starts. */
  async function approve(call: Running, tool: Tool): Promise<Judged & Pick<Ready, "input">> {
    const ctx = planContext(call.record, call.opened, call.hooks.environment);
    const subject = subjectOf(call, tool);
    async function attempt(grants?: JudgedBy["grants"]): Promise<(Judged & Pick<Ready, "input">) | undefined> {
      const input = decode(tool, call.record);
      // Where people said once, grants are looked for only if that is not enough.
      const by: JudgedBy = { grants: grants ?? (call.asks?.some(isOnce) ? "none" : "adopt") };
      const { judged, preview, problem } = await call.observed.step("plan", async () => {
        const judged = await planning.judge(tool, input, ctx, subject, call.record.repeats, by);
        if (judged.verdict.action === PermissionAction.DENY) throw denied(judged.verdict);
        return { judged, ...(await planning.inspect(judged, layersFor(subject))) };
      });
      if (problem) throw problem;
      const isAsked = judged.verdict.action === PermissionAction.ASK;
      const answers = isAsked ? await answersTo(call, tool, judged) : nothingAsked;
      if (answers.missing.length > 0) {
        if (by.grants === "none") return await attempt("adopt");
        await askFor(call, judged, answers, preview, subject);
        isAsking = true;
        return undefined;
      }
      const { gate } = call.hold;
      if (gate && !gate.isOpen) {
        await gate.arrive(call.signal);
        // While the others were waited for, rules and files may have changed.
        return undefined;
      }
      if (await start(call, judged, answers.approved)) return { ...judged, input };
      await refresh(call);
      return undefined;
    }
    /** What a person was asked is for them to decide: it must not start on a new grant meanwhile. */
    async function untilAnswered(): Promise<undefined> {
      await settledAll(call);
      isAsking = false;
    }
    let isAsking = call.record.part.permissionIds.length > 0;
    for (;;) {
      call.signal.throwIfAborted();
      // People may take hours, so nothing of the attempt that asked them is kept until then.
      const allowed = await (isAsking ? untilAnswered() : attempt()).catch(unlessAway(call));
      if (allowed) return allowed;
    }
  }

  /** Before the start mark a store that does not answer is waited for: nothing is lost by doing all of it again. */
  function unlessAway({ hold, signal, record: { ref } }: Running): (cause: unknown) => Promise<undefined> {
    return async (cause) => {
      if (!(cause instanceof RequestError) || cause.reason !== ErrorReason.STORE_UNAVAILABLE) throw cause;
      if (!hold.isSure()) throw new CallGone();
      log.warn("a call waits for the store", { error: cause, callId: ref.callId });
      await delay(250, undefined, { signal });
      return undefined;
    };
  }

  /** 7. The start mark: durable before the body is entered. False if something the decision rests on has changed. */
  async function start(call: Running, judged: Judged, approved: readonly PermissionRequest[]): Promise<boolean> {
    const { plan, verdict } = judged;
    call.signal.throwIfAborted();
    // Another replica can still take the call up; once it is marked nobody can.
    if (!call.hold.isSure()) throw new CallGone();
    call.hold.starting();
    const { attempts } = call.record;
    const part = running(call.record.part, plan.title, store.now());
    const outcome = await store.startCall({
      fence: call.fence,
      version: call.record.version,
      ...(verdict.rulesVersion !== undefined && { rulesVersion: verdict.rulesVersion }),
      grantIds: [...new Set(verdict.decisions.flatMap(({ grantId }) => grantId || []))],
      part,
      decisions: [allowed(call.record, judged, approved)],
    });
    if (outcome === "retry") return false;
    if (outcome === "fenced") {
      // A start mark under our fence is ours: we were not told that it was written.
      await refresh(call);
      if (call.record.attempts === attempts) throw new CallGone();
      return true;
    }
    call.record = { ...call.record, part, attempts: attempts + 1 };
    return true;
  }

  /** 8. The body, under its own signal and deadline, whatever becomes of the request that began it. */
  async function execute(
    call: Running,
    tool: Tool,
    input: unknown,
    plan: Plan,
    outside: readonly string[],
  ): Promise<Returned> {
    const { ref, part, spec } = call.record;
    // A process that was frozen since the start mark may have been given up; nothing may run then.
    if (!call.hold.isSure()) throw new CallGone();
    const deadline = createDeadline(spec.timeoutMs || plan.timeoutMs || limits.timeoutMs, (ms) =>
      call.controller.abort(
        new CallEnd(
          ToolErrorReason.TIMEOUT,
          `The call took longer than ${ms} ms and was stopped. Give it a longer timeout_ms, or less to do.`,
        ),
      ),
    );
    const record = async (events: (ToolOutput | ToolProgress)[]) => {
      if (await store.recordEvents(call.fence, events)) return;
      call.controller.abort(new CallGone());
      throw new CallGone();
    };
    const output = createCallOutput({
      root: ref.root,
      callId: ref.callId,
      id: newId("out", store.now()),
      store: outputs,
      limit: limits.outputBytes,
      keep: tool.keep,
      record,
    });
    const progress = createProgress(ref.callId, (event) => record([event]));
    call.progress = progress;
    call.output = output;
    try {
      const parent = { record: call.record, opened: call.opened, signal: call.signal };
      const contextIn = (trace: TraceContext | undefined): ToolContext => ({
        ...planContext(call.record, call.opened, call.hooks.environment),
        messageId: part.messageId,
        model: { providerId: spec.providerId, modelId: spec.modelId },
        signal: call.signal,
        outside,
        reads: {
          get: (path) => store.getRead(ref.root, path),
          record: (path, sha256) => store.recordRead(ref.root, path, sha256),
        },
        state: {
          async get(name) {
            const value = await store.getState(ref, name);
            return value === undefined ? undefined : JSON.parse(value);
          },
          set: (name, value) => store.setState(ref, name, JSON.stringify(value)),
        },
        outputs: { read: (id, offset, limit) => outputs.read(ref.root, id, offset, limit) },
        metadata: progress.update,
        output: output.write,
        calls: (children, options) =>
          deadline.whilePaused(() => makeCalls({ ...parent, ...(trace && { trace }) }, children, options)),
        ask: (ask) => deadline.whilePaused(() => askInBody(call, tool, plan, ask)),
        extra: part.metadata ?? {},
        ...(trace && { trace }),
      });
      const result = await call.observed.step("execute", (trace) =>
        orAborted(tool.execute(input, plan, contextIn(trace)), call.signal),
      );
      call.signal.throwIfAborted();
      await output.end();
      return { result, output };
    } finally {
      deadline.clear();
      progress.stop();
    }
  }

  /** 10, 11. Bounds what the model sees, keeps the whole, and writes the end. */
  async function settle(call: Running, plan: Plan, { result, output }: Returned): Promise<ToolPart | undefined> {
    const { text, ...sizes } = result.output === undefined ? output.written() : await output.whole(result.output);
    const structured = await kept.structured(call, result.structured);
    const metadata: JsonObject = {
      ...call.progress?.shown.metadata,
      ...result.metadata,
      ...sizes,
      ...structured.metadata,
      truncated: sizes.truncated || result.metadata?.truncated === true,
    };
    const attachments = await fileParts(result.attachments ?? [], (bytes) => kept.output(call, bytes));
    const shown = await call.hooks.after(call.record.part, "completed", {
      title: result.title ?? call.progress?.shown.title ?? plan.title,
      output: [text, result.note, noteOfEdit(call.record.part)].filter(Boolean).join("\n\n"),
      metadata,
    });
    const part = completed(
      call.record.part,
      {
        ...shown,
        attachments,
        ...(structured.value && { structuredOutput: structured.value }),
      },
      store.now(),
    );
    return await finish(call, part);
  }

  async function finish(
    call: Running,
    part: ToolPart,
    decisions: readonly DecisionRecord[] = [],
  ): Promise<ToolPart | undefined> {
    const written = await store.finishCall({ ref: call.record.ref, guard: { fence: call.fence }, part, decisions });
    if (written) call.record = { ...call.record, part: written };
    return written;
  }

  /** What is told of a call that failed: if its body was entered, as the hooks after it leave it. */
  async function failureTold(call: Running, cause: unknown, metadata: JsonObject | undefined): Promise<CallFailure> {
    const failure = { ...callFailure(cause, call, log), ...(metadata && { metadata }) };
    // A hook after the body that failed is not run again.
    if (call.record.part.state.case !== "running" || cause instanceof HookFailure) return failure;
    const title = call.progress?.shown.title ?? "";
    try {
      const shown = { title, output: failure.error, metadata: metadata ?? {} };
      const left = await call.hooks.after(call.record.part, "error", shown);
      return { ...failure, error: left.output, ...(metadata && { metadata: left.metadata }) };
    } catch (error) {
      if (!(error instanceof HookFailure)) throw error;
      return { ...failure, error: `${failure.error}\n${error.message}` };
    }
  }

  /** The four kinds of end without a result: expected failure, refusal, abort, defect. What is not ours is not written. */
  async function end(call: Running, thrown: unknown): Promise<ToolPart | undefined> {
    const cause = call.signal.aborted ? call.signal.reason : thrown;
    if (cause instanceof CallGone || isTerminal(call.record.part)) return undefined;
    try {
      // What was written until then is kept and named, unless keeping it is what failed.
      await call.output?.end().catch(() => undefined);
      const written = call.output?.written();
      const { text: _, ...sizes } = written ?? { text: "" };
      const metadata = call.progress || written ? { ...call.progress?.shown.metadata, ...sizes } : undefined;
      const told = await failureTold(call, cause, metadata);
      const error = await kept.error(call, [told.error, noteOfEdit(call.record.part)].filter(Boolean).join("\n\n"));
      const part = failed(call.record.part, { ...told, error }, store.now());
      const decisions = cause instanceof CallEnd && cause.decisions ? [deniedBy(call.record, cause.decisions)] : [];
      return await finish(call, part, decisions);
    } catch (error) {
      // The lease lapses and the reaper ends the call.
      log.error("the end of a call could not be recorded", { error, callId: call.record.ref.callId });
      return undefined;
    }
  }

  function planContext(
    { ref, part }: Pick<CallRecord, "ref" | "part">,
    opened: OpenSession,
    environment: PlanContext["environment"],
  ): PlanContext {
    return {
      environment,
      sessionId: ref.sessionId,
      callId: ref.callId,
      agent: part.agent,
      workspace: opened.workspace,
      reads: { get: (path) => store.getRead(ref.root, path) },
      judge: planning.judging(layersFor({ session: opened.session, ancestors: opened.ancestors, agent: part.agent })),
    };
  }

  return { run, prepare };
}

interface Returned {
  result: ToolResult;
  output: CallOutput;
}

const noEnvironment = async () => ({});
