import { setTimeout as delay } from "node:timers/promises";
import { create, fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { ToolOutput, ToolProgress } from "../../gen/opencode/tool/v1/event_pb.ts";
import {
  DecisionKind,
  type DecisionRecord,
  PermissionAction,
  type PermissionDecision,
  PermissionDecisionSchema,
  PermissionOutcome,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type FilePart,
  FilePartSchema,
  type PermissionRequest,
  PermissionToolContextSchema,
  type Preview,
  ToolEffects,
  ToolErrorReason,
  type ToolPart,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Logger } from "../log.ts";
import { decisionOn } from "../permission/decisions.ts";
import { RequestError } from "../permission/errors.ts";
import type { JudgedBy, Permissions, Subject, Verdict } from "../permission/permissions.ts";
import { workspaceRoot } from "../permission/permissions.ts";
import type { Layers, Question } from "../permission/policy.ts";
import type { AskRecord } from "../permission/ports.ts";
import { refusalText } from "../permission/settlements.ts";
import { canonicalJson } from "../tool/canonical-json.ts";
import {
  ChangedAfterApproval,
  HookFailure,
  InvalidInput,
  InvalidOutput,
  OutputLimit,
  ToolFailure,
} from "../tool/errors.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Registry } from "../tool/registry.ts";
import { similar } from "../tool/similar.ts";
import type { Ask, Attachment, Plan, PlanContext, Tool, ToolContext, ToolResult } from "../tool/tool.ts";
import { type CallHooks, createCallHooks } from "./call-hooks.ts";
import type { createChildren, StartGate } from "./children.ts";
import { createDeadline, orAborted } from "./deadline.ts";
import { allowed, decidedCall, deniedBy } from "./decided.ts";
import { noteOfEdit } from "./edit.ts";
import { newId } from "./ids.ts";
import type { CallObservation, CallObserver } from "./observer.ts";
import { type CallOutput, createCallOutput } from "./output.ts";
import { beginning, type Inspected, type Judged, mostRepeats, type Planning } from "./planning.ts";
import type { CallRecord, CallStore, Fence, OutputStore } from "./ports.ts";
import { createProgress } from "./progress.ts";
import type { OpenSession } from "./sessions.ts";
import { completed, failed, inputOf, isTerminal, prepared, running } from "./state.ts";
import { createWaits } from "./waits.ts";

/** Why the engine ends a call. Also the reason with which a call's signal is aborted. */
export class CallEnd extends Error {
  override name = "CallEnd";
  readonly reason: ToolErrorReason;
  /** What the rules said, where they end it. */
  readonly decisions: readonly PermissionDecision[] | undefined;
  constructor(reason: ToolErrorReason, message: string, decisions?: readonly PermissionDecision[]) {
    super(message);
    this.reason = reason;
    this.decisions = decisions;
  }
}

/** The call is no longer ours to write: it has ended, or another replica holds it. */
export class CallGone extends Error {
  override name = "CallGone";
}

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
  const waits = createWaits({ calls: store, outputs });

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
      // How many such calls came before it only the step knows that accepts it: `mostRepeats`.
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
        mostRepeats: planning.mayLoop(tool, layers) ? undefined : mostRepeats,
      };
    } catch {
      return undefined;
    }
  }

  /** Writes down what changes no state. */
  async function note(fence: Fence, noted: { hooked?: string; decisions?: readonly DecisionRecord[] }): Promise<void> {
    if (!(await store.noteCall({ fence, ...noted }))) throw new CallGone();
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
    async function attempt(): Promise<(Judged & Pick<Ready, "input">) | undefined> {
      // What a person was asked is for them to decide: it must not start on a new grant meanwhile.
      if (call.record.part.permissionIds.length > 0) await settledAll(call);
      const input = decode(tool, call.record);
      const { judged, preview, problem } = await call.observed.step("plan", async () => {
        const judged = await planning.judge(tool, input, ctx, subject, call.record.repeats);
        if (judged.verdict.action === PermissionAction.DENY) throw denied(judged.verdict);
        return { judged, ...(await planning.inspect(judged, layersFor(subject))) };
      });
      if (problem) throw problem;
      const isAsked = judged.verdict.action === PermissionAction.ASK;
      const approved = isAsked ? await answered(call, tool, judged, preview, subject) : [];
      if (!approved) return undefined;
      const { gate } = call.hold;
      if (gate && !gate.isOpen) {
        await gate.arrive(call.signal);
        // While the others were waited for, rules and files may have changed.
        return undefined;
      }
      if (await start(call, judged, approved)) return { ...judged, input };
      await refresh(call);
      return undefined;
    }
    for (;;) {
      call.signal.throwIfAborted();
      const allowed = await attempt().catch(unlessAway(call));
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

  /** 6. The asks by which a person approved exactly this. If not all, some are opened (those of an earlier plan withdrawn) and waited for. */
  async function answered(
    call: Running,
    tool: Tool,
    judged: Judged,
    preview: Inspected["preview"],
    subject: Subject,
  ): Promise<PermissionRequest[] | undefined> {
    const { plan, verdict } = judged;
    const digest = await planning.digestOf(tool, inputOf(call.record.part), plan, call.opened);
    const asks = await asksOf(call.record.ref);
    const same = (question: Question) => (ask: AskRecord) =>
      ask.request.digest === digest &&
      ask.request.permission === question.permission &&
      equal(ask.request.patterns, question.patterns);
    const approved = asks.filter((ask) => isApproved(ask, asks));
    const missing = verdict.needs.filter(
      (question) => !call.hooks.allows(digest, question) && !approved.some(same(question)),
    );
    if (missing.length === 0) {
      return approved.map(({ request }) => request).filter((request) => request.digest === digest);
    }
    if (call.record.attempts > 0) {
      // There is no ask after a start mark, also not for what is about to be repeated.
      throw new CallEnd(
        ToolErrorReason.EXECUTOR_LOST,
        "The executor stopped responding while the tool ran. It is not run again, as it would have to be asked for again: repeat the call.",
      );
    }
    const open = asks.filter(({ settled }) => !settled);
    const stale = open.filter((ask) => !missing.some((question) => same(question)(ask)));
    const unasked = await unlessHooksDecide(
      call,
      missing.filter((question) => !open.some(same(question))),
      plan,
      digest,
    );
    if (stale.length > 0 || unasked.length > 0) {
      const kept = preview && (await keepPreview(call, preview));
      const requests = unasked.map((question) => requestFor(call, { ...judged, question }, kept, subject, digest));
      await openAsks(call, requests, verdict, stale);
    }
    await settledAll(call);
    return undefined;
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
    call.progress = createProgress(ref.callId, (event) => record([event]));
    call.output = output;
    try {
      const ctx: ToolContext = {
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
        metadata: call.progress.update,
        output: output.write,
        calls: (children, options) =>
          deadline.whilePaused(() =>
            makeCalls({ record: call.record, opened: call.opened, signal: call.signal }, children, options),
          ),
        ask: (ask) => deadline.whilePaused(() => askInBody(call, tool, plan, ask)),
        extra: part.metadata ?? {},
      };
      const result = await call.observed.step("execute", (trace) =>
        orAborted(tool.execute(input, plan, { ...ctx, ...(trace && { trace }) }), call.signal),
      );
      call.signal.throwIfAborted();
      await output.end();
      return { result, output };
    } finally {
      deadline.clear();
      call.progress.stop();
    }
  }

  /** 10, 11. Bounds what the model sees, keeps the whole, and writes the end. */
  async function settle(call: Running, plan: Plan, { result, output }: Returned): Promise<ToolPart | undefined> {
    const { text, ...sizes } = result.output === undefined ? output.written() : await output.whole(result.output);
    const structured = await boundStructured(call, result.structured);
    const metadata: JsonObject = {
      ...call.progress?.shown.metadata,
      ...result.metadata,
      ...sizes,
      ...structured.metadata,
      truncated: sizes.truncated || result.metadata?.truncated === true,
    };
    const attachments: FilePart[] = [];
    for (const attachment of result.attachments ?? []) attachments.push(await filePart(call, attachment));
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
  async function failureTold(call: Running, cause: unknown, metadata: JsonObject | undefined): Promise<Failure> {
    const failure = { ...failureOf(cause, call), ...(metadata && { metadata }) };
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
      const error = [told.error, noteOfEdit(call.record.part)].filter(Boolean).join("\n\n");
      const part = failed(call.record.part, { ...told, error }, store.now());
      const decisions = cause instanceof CallEnd && cause.decisions ? [deniedBy(call.record, cause.decisions)] : [];
      return await finish(call, part, decisions);
    } catch (error) {
      // The lease lapses and the reaper ends the call.
      log.error("the end of a call could not be recorded", { error, callId: call.record.ref.callId });
      return undefined;
    }
  }

  function failureOf(cause: unknown, { record, tool }: Running): Failure {
    const readOnly = tool?.definition.annotations?.readOnly === true;
    const effects = readOnly ? ToolEffects.NONE : ToolEffects.UNKNOWN;
    if (cause instanceof CallEnd) return { reason: cause.reason, error: cause.message, effects };
    if (cause instanceof InvalidInput) return { reason: ToolErrorReason.INVALID_INPUT, error: cause.message };
    if (cause instanceof ChangedAfterApproval) {
      return { reason: ToolErrorReason.CHANGED_AFTER_APPROVAL, error: cause.message, effects: ToolEffects.NONE };
    }
    if (cause instanceof InvalidOutput) {
      log.warn("a tool broke its own output schema", { error: cause, tool: record.part.tool });
      return { reason: ToolErrorReason.INVALID_OUTPUT, error: cause.message, effects };
    }
    if (cause instanceof HookFailure) {
      log.warn("a plugin's hook stopped a call", { error: cause, callId: record.ref.callId, tool: record.part.tool });
      return { reason: ToolErrorReason.FAILED, error: `${cause.message}.`, effects };
    }
    if (cause instanceof OutputLimit) return { reason: ToolErrorReason.OUTPUT_LIMIT, error: cause.message, effects };
    if (cause instanceof ToolFailure) return { reason: ToolErrorReason.FAILED, error: cause.message, effects };
    if (cause instanceof RequestError && cause.reason === ErrorReason.QUOTA_EXCEEDED) {
      return { reason: ToolErrorReason.FAILED, error: `The call could not go on: ${cause.message}.`, effects };
    }
    const { callId, sessionId } = record.ref;
    log.error("defect in a tool call", { error: cause, callId, sessionId, tool: record.part.tool });
    return {
      reason: ToolErrorReason.FAILED,
      error: `The tool "${record.part.tool}" broke. The service's log has the cause, under this call's id.`,
      effects,
    };
  }

  /** An ask in the middle of the body: it dies with this replica, and so does the call. */
  async function askInBody(call: Running, tool: Tool, approved: Plan, ask: Ask): Promise<void> {
    const subject = subjectOf(call, tool);
    const verdict = await permissions.decide([ask], subject);
    if (verdict.action === PermissionAction.DENY) throw denied(verdict);
    const record = (by?: string) => note(call.fence, { decisions: [allowed(call.record, { verdict }, [], by)] });
    if (verdict.action === PermissionAction.ALLOW) return await record();
    if (approved.asks.some(({ permission, wholeCall }) => wholeCall && permission === ask.permission))
      return await record("the call was allowed as a whole");
    const plan: Plan = { title: "", asks: [ask], ...(ask.cwd !== undefined && { cwd: ask.cwd }) };
    const digest = await planning.digestOf(tool, inputOf(call.record.part), plan, call.opened);
    const unasked = await unlessHooksDecide(call, verdict.needs, plan, digest);
    if (unasked.length === 0) return await record();
    const requests = unasked.map((question) =>
      requestFor(call, { question, plan, verdict }, undefined, subject, digest),
    );
    do await refresh(call);
    while (!(await openAsks(call, requests, { ...verdict, rulesVersion: undefined }, [])));
    await settledAll(call);
    const asks = await asksOf(call.record.ref);
    for (const request of requests) {
      const asked = asks.find(({ request: { id } }) => id === request.id);
      if (asked && isSettledWell(asked)) continue;
      const end = new CallEnd(...refusalText(request, asked?.settled?.outcome, asked?.settled?.message));
      // A refusal ends the call, also if the tool would rather go on.
      call.controller.abort(end);
      throw end;
    }
  }

  /** The questions that hooks leave to people. One that a hook denies ends the call. */
  async function unlessHooksDecide(
    call: Running,
    questions: readonly Question[],
    plan: Plan,
    digest: string,
  ): Promise<Question[]> {
    const left: Question[] = [];
    for (const question of questions) {
      const decided = await call.hooks.decide(digest, question, plan);
      if (decided === "ask") left.push(question);
      if (decided !== "deny") continue;
      const { permission, patterns } = question;
      const by = { permission, action: PermissionAction.DENY, reason: "a plugin denies it" };
      const decisions = patterns.map((pattern) => create(PermissionDecisionSchema, { ...by, pattern }));
      throw denied({ decisions });
    }
    return left;
  }

  function requestFor(
    call: Running,
    { question, plan, verdict }: Pick<Judged, "plan" | "verdict"> & { question: Question },
    preview: Inspected["preview"],
    subject: Subject,
    digest: string,
  ): PermissionRequest {
    const { part } = call.record;
    const metadata = plan.asks.find(({ permission }) => permission === question.permission)?.metadata;
    return permissions.request(
      { ...question, ...(metadata && { metadata }) },
      verdict.decisions,
      {
        sessionId: part.sessionId,
        agent: part.agent,
        digest,
        expires: store.now() + limits.askMs,
        preview,
        tool: create(PermissionToolContextSchema, { messageId: part.messageId, callId: part.callId }),
      },
      subject,
      newId("per", store.now()),
    );
  }

  /** Opens asks, and withdraws those of an earlier plan. False if the call has changed since it was read. */
  async function openAsks(
    call: Running,
    asks: PermissionRequest[],
    { decisions, rulesVersion }: Pick<Verdict, "decisions"> & { rulesVersion?: number | undefined },
    stale: AskRecord[],
  ): Promise<boolean> {
    const permissionIds = asks.map(({ id }) => id);
    const about = { digest: asks[0]?.digest ?? "", decisions, permissionIds };

    const opened = await store.openAsks({
      fence: call.fence,
      version: call.record.version,
      ...(rulesVersion !== undefined && { rulesVersion }),
      asks,
      withdraw: stale.map(({ request }) => request.id),
      message: "What would run has changed since it was asked.",
      maxOpenAsks: limits.openAsks,
      decisions: asks.length === 0 ? [] : [decisionOn(decidedCall(call.record), DecisionKind.ASKED, about)],
    });
    if (opened && unattended === "deny") await permissions.deny(call.record.ref);
    return opened;
  }

  /** Waits until no ask of the call is open. */
  async function settledAll(call: Running): Promise<void> {
    const wait = await waits.begin(call.record.ref);
    try {
      await refresh(call);
      if (call.record.part.permissionIds.length === 0) return;
      await call.observed.step("wait", async () => {
        do {
          await wait.news(call.signal);
          await refresh(call);
        } while (call.record.part.permissionIds.length > 0);
      });
    } finally {
      wait.end();
    }
  }

  /** Reads the call again; throws if it has ended or is no longer ours. */
  async function refresh(call: Running): Promise<void> {
    const now = await store.getCall(call.record.ref.sessionId, call.record.ref.callId);
    if (now) call.record = now;
    if (!now || isTerminal(now.part) || now.epoch !== call.fence.epoch || now.owner !== call.fence.owner)
      throw new CallGone();
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

  /** A diff that is too large for an ask is stored whole, and the ask says where. */
  async function keepPreview({ record: { ref } }: Running, preview: Preview): Promise<Preview> {
    const id = newId("out", store.now());
    const kept = beginning(preview, `toolgate-output:${id}`);
    if (kept.url !== "") await outputs.append(ref.root, id, Buffer.from(preview.diff));
    return kept;
  }

  /** Structured output as the part holds it; what is too large for that is stored whole, and the metadata says where. */
  async function boundStructured(
    { record: { ref } }: Running,
    output: JsonValue | undefined,
  ): Promise<{ value?: Value; metadata?: JsonObject }> {
    if (output === undefined) return {};
    const bytes = Buffer.from(JSON.stringify(output));
    if (bytes.length <= mostStructured) return { value: fromJson(ValueSchema, output) };
    const id = newId("out", store.now());
    await outputs.append(ref.root, id, bytes);
    return { metadata: { structuredPath: `toolgate-output:${id}` } };
  }

  async function filePart({ record: { ref } }: Running, { mime, filename, data }: Attachment): Promise<FilePart> {
    const file = { type: "file", mime, size: BigInt(data.length), ...(filename !== undefined && { filename }) };
    if (data.length <= 64 * 1024) {
      return create(FilePartSchema, { ...file, url: `data:${mime};base64,${Buffer.from(data).toString("base64")}` });
    }
    const id = newId("out", store.now());
    await outputs.append(ref.root, id, data);
    return create(FilePartSchema, { ...file, url: `toolgate-output:${id}` });
  }

  return { run, prepare };
}

/** Bytes of structured output, as JSON, that a part holds. */
const mostStructured = 51_200;

/** A call that may start as soon as it is accepted. */
export interface Ready extends Judged {
  tool: Tool;
  input: unknown;
  /** The running part. */
  start: ToolPart;
  /** What lets it start. */
  decision: DecisionRecord;
  /** Of a call that repeats those before it more often than this a person is asked; undefined: never. */
  mostRepeats: number | undefined;
}

/** What a run and whoever launched it have to do with each other. */
export interface Hold {
  /** What the call waits for before it starts, besides people. */
  gate?: StartGate | undefined;
  /** Whether the lease is sure to be alive. */
  isSure(): boolean;
  /** The start mark is about to be written: from then on only this run can end the call. */
  starting(): void;
}

/** A call on its way, as its steps share it. */
interface Running {
  record: CallRecord;
  readonly opened: OpenSession;
  readonly controller: AbortController;
  readonly signal: AbortSignal;
  readonly fence: Fence;
  readonly hold: Hold;
  readonly observed: CallObservation;
  /** What was resolved for it. */
  tool?: Tool;
  readonly hooks: CallHooks;
  progress?: ReturnType<typeof createProgress>;
  output?: CallOutput;
}

interface Failure {
  reason: ToolErrorReason;
  error: string;
  effects?: ToolEffects;
  metadata?: JsonObject;
}

interface Returned {
  result: ToolResult;
  output: CallOutput;
}

const noEnvironment = async () => ({});

function fenceOf({ ref, owner, epoch }: CallRecord): Fence {
  return { ref, owner, epoch };
}

/** Whose call it is, as policy and grants see it. */
export function subjectFor(
  opened: Pick<OpenSession, "session" | "ancestors" | "workspace"> | Pick<OpenSession, "workspace">,
  agent: string,
  tool: Tool,
): Subject {
  return {
    session: "session" in opened ? opened.session : undefined,
    ancestors: "ancestors" in opened ? opened.ancestors : [],
    agent,
    workspace: workspaceRoot(opened.workspace.name),
    directory: opened.workspace.directory,
    tool: tool.name,
    binding: tool.permissionBinding,
  };
}

function subjectOf({ opened, record }: Running, tool: Tool): Subject {
  return subjectFor(opened, record.part.agent, tool);
}

function isSettledWell({ settled }: AskRecord): boolean {
  return settled?.outcome === PermissionOutcome.ONCE || settled?.outcome === PermissionOutcome.ALWAYS;
}

/** Whether a person approved an ask. One that only another call's grant covers stands and falls with that grant. */
function isApproved(ask: AskRecord, ofCall: readonly AskRecord[]): boolean {
  const { settledWith = "" } = ask.settled ?? {};
  return isSettledWell(ask) && (settledWith === "" || ofCall.some(({ request }) => request.id === settledWith));
}

function equal(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((text, i) => text === b[i]);
}

function denied({ decisions }: Pick<Verdict, "decisions">): CallEnd {
  const deciding = decisions.find(({ action }) => action === PermissionAction.DENY);
  const what = deciding ? `${deciding.permission} ${JSON.stringify(deciding.pattern)}` : "This call";
  const why = deciding?.reason ?? "a rule denies it";
  return new CallEnd(
    ToolErrorReason.DENIED,
    `${what} is not allowed: ${why}. Do not try it again; go on without it.`,
    decisions,
  );
}
