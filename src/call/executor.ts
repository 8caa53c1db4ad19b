import { setTimeout as delay } from "node:timers/promises";
import { create, type JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { type ToolOutput, type ToolProgress, ToolProgressSchema } from "../../gen/opencode/tool/v1/event_pb.ts";
import {
  DecisionKind,
  type DecisionRecord,
  PermissionAction,
  type PermissionDecision,
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
import { refusalText } from "../permission/answers.ts";
import { type DecidedCall, decisionOn } from "../permission/decisions.ts";
import { RequestError } from "../permission/errors.ts";
import type { JudgedBy, Permissions, Subject, Verdict } from "../permission/permissions.ts";
import { workspaceRoot } from "../permission/permissions.ts";
import type { Layers, Question } from "../permission/policy.ts";
import type { AskRecord } from "../permission/ports.ts";
import { ChangedAfterApproval, InvalidInput, OutputLimit, ToolFailure } from "../tool/errors.ts";
import type { Registry } from "../tool/registry.ts";
import type { Ask, Attachment, Plan, PlanContext, Tool, ToolContext, ToolResult } from "../tool/tool.ts";
import { noteOfEdit } from "./edit.ts";
import { newId } from "./ids.ts";
import { type CallOutput, createCallOutput } from "./output.ts";
import { beginning, type Inspected, type Judged, mostRepeats, type Planning } from "./planning.ts";
import type { CallRecord, CallStore, Fence, OutputStore } from "./ports.ts";
import type { OpenSession } from "./sessions.ts";
import { completed, failed, inputOf, isTerminal, running } from "./state.ts";
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
  limits,
  unattended,
  log,
}: {
  store: CallStore;
  outputs: OutputStore;
  permissions: Permissions;
  asksOf(call: CallRecord["ref"]): Promise<AskRecord[]>;
  planning: Planning;
  layersFor(subject: Pick<Subject, "session" | "ancestors" | "agent">): Layers;
  registry: Registry;
  limits: ExecutorLimits;
  unattended: "wait" | "deny";
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
    const call: Running = { record, opened, controller, signal: controller.signal, fence: fenceOf(record), hold };
    try {
      const tool = ready?.tool ?? resolve(record);
      const { input, plan } = ready ?? (await approve(call, tool));
      const result = await execute(call, tool, input, plan);
      return await settle(call, plan, result);
    } catch (cause) {
      return await end(call, cause);
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
    try {
      const tool = resolve(call);
      const input = decode(tool, call);
      const subject = subjectFor(opened, call.part.agent, tool);
      const layers = layersFor(subject);
      // How many such calls came before it only the step knows that accepts it: `mostRepeats`.
      const by: JudgedBy = { layers, grants: "none" };
      const judged = await planning.judge(tool, input, planContext(call, opened), subject, 0, by);
      if (judged.verdict.action !== PermissionAction.ALLOW) return undefined;
      const { problem } = await planning.inspect(judged, layers);
      if (problem) return undefined;
      return {
        tool,
        input,
        plan: judged.plan,
        start: running(call.part, judged.plan.title, store.now()),
        decision: allowed(call, judged),
        mostRepeats: planning.mayLoop(tool, layers) ? undefined : mostRepeats,
      };
    } catch {
      return undefined;
    }
  }

  /** 1. The registration that serves now; it is captured, later changes do not touch this call. */
  function resolve({ part, spec }: Pick<CallRecord, "part" | "spec">): Tool {
    const tool = registry.get(part.tool);
    if (!tool) {
      const known = registry.list().map(({ name }) => name);
      throw new CallEnd(
        ToolErrorReason.UNKNOWN_TOOL,
        `There is no tool "${part.tool}". Use one of: ${known.join(", ")}.`,
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
  async function approve(call: Running, tool: Tool): Promise<Pick<Ready, "input" | "plan">> {
    const ctx = planContext(call.record, call.opened);
    const subject = subjectOf(call, tool);
    async function attempt(): Promise<Pick<Ready, "input" | "plan"> | undefined> {
      // What a person was asked is for them to decide: it must not start on a new grant meanwhile.
      if (call.record.part.permissionIds.length > 0) await settledAll(call);
      const input = decode(tool, call.record);
      const judged = await planning.judge(tool, input, ctx, subject, call.record.repeats);
      if (judged.verdict.action === PermissionAction.DENY) throw denied(judged.verdict);
      const { preview, problem } = await planning.inspect(judged, layersFor(subject));
      if (problem) throw problem;
      const isAsked = judged.verdict.action === PermissionAction.ASK;
      const approved = isAsked ? await answered(call, tool, judged, preview, subject) : [];
      if (!approved) return undefined;
      if (await start(call, judged, approved)) return { input, plan: judged.plan };
      await refresh(call);
      return undefined;
    }
    for (;;) {
      call.signal.throwIfAborted();
      const ready = await attempt().catch(unlessAway(call));
      if (ready) return ready;
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
    { plan, verdict }: Judged,
    preview: Inspected["preview"],
    subject: Subject,
  ): Promise<PermissionRequest[] | undefined> {
    const digest = await planning.digestOf(tool, inputOf(call.record.part), plan, call.opened);
    const asks = await asksOf(call.record.ref);
    const same = (question: Question) => (ask: AskRecord) =>
      ask.request.digest === digest &&
      ask.request.permission === question.permission &&
      equal(ask.request.patterns, question.patterns);
    const approved = asks.filter((ask) => isApproved(ask, asks));
    const missing = verdict.needs.filter((question) => !approved.some(same(question)));
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
    const unasked = missing.filter((question) => !open.some(same(question)));
    if (stale.length > 0 || unasked.length > 0) {
      const kept = preview && (await keepPreview(call, preview));
      const requests = unasked.map((question) => requestFor(call, { question, plan, verdict }, kept, subject, digest));
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
  async function execute(call: Running, tool: Tool, input: unknown, plan: Plan): Promise<Returned> {
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
        ...planContext(call.record, call.opened),
        messageId: part.messageId,
        model: { providerId: spec.providerId, modelId: spec.modelId },
        signal: call.signal,
        reads: {
          get: (path) => store.getRead(ref.root, path),
          record: (path, sha256) => store.recordRead(ref.root, path, sha256),
        },
        outputs: { read: (id, offset, limit) => outputs.read(ref.root, id, offset, limit) },
        metadata: call.progress.update,
        output: output.write,
        ask: (ask) => deadline.whilePaused(() => askInBody(call, tool, ask)),
        extra: part.metadata ?? {},
      };
      const result = await orAborted(tool.execute(input, plan, ctx), call.signal);
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
    const metadata: JsonObject = {
      ...call.progress?.shown.metadata,
      ...result.metadata,
      ...sizes,
      truncated: sizes.truncated || result.metadata?.truncated === true,
    };
    const attachments: FilePart[] = [];
    for (const attachment of result.attachments ?? []) attachments.push(await filePart(call, attachment));
    const title = result.title ?? call.progress?.shown.title ?? plan.title;
    const part = completed(
      call.record.part,
      {
        title,
        output: [text, result.note, noteOfEdit(call.record.part)].filter(Boolean).join("\n\n"),
        metadata,
        attachments,
      },
      store.now(),
    );
    return await store.finishCall({ ref: call.record.ref, guard: { fence: call.fence }, part });
  }

  /** The four kinds of end without a result: expected failure, refusal, abort, defect. What is not ours is not written. */
  async function end(call: Running, thrown: unknown): Promise<ToolPart | undefined> {
    const cause = call.signal.aborted ? call.signal.reason : thrown;
    if (cause instanceof CallGone) return undefined;
    try {
      // What was written until then is kept and named, unless keeping it is what failed.
      await call.output?.end().catch(() => undefined);
      const written = call.output?.written();
      const { text: _, ...sizes } = written ?? { text: "" };
      const { error, ...failure } = failureOf(cause, call);
      const part = failed(
        call.record.part,
        {
          ...failure,
          error: [error, noteOfEdit(call.record.part)].filter(Boolean).join("\n\n"),
          ...((call.progress || written) && { metadata: { ...call.progress?.shown.metadata, ...sizes } }),
        },
        store.now(),
      );
      const decisions = cause instanceof CallEnd && cause.decisions ? [deniedBy(call.record, cause.decisions)] : [];
      return await store.finishCall({ ref: call.record.ref, guard: { fence: call.fence }, part, decisions });
    } catch (error) {
      // The lease lapses and the reaper ends the call.
      log.error("the end of a call could not be recorded", { error, callId: call.record.ref.callId });
      return undefined;
    }
  }

  function failureOf(
    cause: unknown,
    { record }: Running,
  ): { reason: ToolErrorReason; error: string; effects?: ToolEffects } {
    const readOnly = registry.get(record.part.tool)?.definition.annotations?.readOnly === true;
    const effects = readOnly ? ToolEffects.NONE : ToolEffects.UNKNOWN;
    if (cause instanceof CallEnd) return { reason: cause.reason, error: cause.message, effects };
    if (cause instanceof InvalidInput) return { reason: ToolErrorReason.INVALID_INPUT, error: cause.message };
    if (cause instanceof ChangedAfterApproval) {
      return { reason: ToolErrorReason.CHANGED_AFTER_APPROVAL, error: cause.message, effects: ToolEffects.NONE };
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
  async function askInBody(call: Running, tool: Tool, ask: Ask): Promise<void> {
    const subject = subjectOf(call, tool);
    const verdict = await permissions.decide([ask], subject);
    if (verdict.action === PermissionAction.ALLOW) return;
    if (verdict.action === PermissionAction.DENY) throw denied(verdict);
    const plan: Plan = { title: "", asks: [ask], ...(ask.cwd !== undefined && { cwd: ask.cwd }) };
    const digest = await planning.digestOf(tool, inputOf(call.record.part), plan, call.opened);
    const requests = verdict.needs.map((question) =>
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

  function requestFor(
    call: Running,
    { question, plan, verdict }: Judged & { question: Question },
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
      for (;;) {
        await refresh(call);
        if (call.record.part.permissionIds.length === 0) return;
        await wait.news(call.signal);
      }
    } finally {
      wait.end();
    }
  }

  /** Reads the call again; throws if it has ended or is no longer ours. */
  async function refresh(call: Running): Promise<void> {
    const now = await store.getCall(call.record.ref.sessionId, call.record.ref.callId);
    if (!now || isTerminal(now.part) || now.epoch !== call.fence.epoch || now.owner !== call.fence.owner)
      throw new CallGone();
    call.record = now;
  }

  function planContext({ ref, part }: Pick<CallRecord, "ref" | "part">, opened: OpenSession): PlanContext {
    return {
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

function decidedCall({ part, spec }: Pick<CallRecord, "part" | "spec">): DecidedCall {
  return { part, principal: spec.principal };
}

/** Records that a call may start: by rules and grants, or because people approved what it asked. */
function allowed(
  call: Pick<CallRecord, "part" | "spec">,
  { verdict }: Judged,
  approved: readonly PermissionRequest[] = [],
): DecisionRecord {
  return decisionOn(decidedCall(call), DecisionKind.ALLOWED, {
    digest: approved[0]?.digest ?? call.spec.requestDigest,
    decisions: verdict.decisions,
    permissionIds: approved.map(({ id }) => id),
  });
}

function deniedBy(call: Pick<CallRecord, "part" | "spec">, decisions: readonly PermissionDecision[]): DecisionRecord {
  return decisionOn(decidedCall(call), DecisionKind.DENIED, { digest: call.spec.requestDigest, decisions });
}

/** A call that may start as soon as it is accepted. */
export interface Ready {
  tool: Tool;
  input: unknown;
  plan: Plan;
  /** The running part. */
  start: ToolPart;
  /** What lets it start. */
  decision: DecisionRecord;
  /** Of a call that repeats those before it more often than this a person is asked; undefined: never. */
  mostRepeats: number | undefined;
}

/** What a run and its lease have to do with each other. */
export interface Hold {
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
  progress?: ReturnType<typeof createProgress>;
  output?: CallOutput;
}

interface Returned {
  result: ToolResult;
  output: CallOutput;
}

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

function denied({ decisions }: Verdict): CallEnd {
  const deciding = decisions.find(({ action }) => action === PermissionAction.DENY);
  const what = deciding ? `${deciding.permission} ${JSON.stringify(deciding.pattern)}` : "This call";
  const why = deciding?.reason ?? "a rule denies it";
  return new CallEnd(
    ToolErrorReason.DENIED,
    `${what} is not allowed: ${why}. Do not try it again; go on without it.`,
    decisions,
  );
}

/** Resolves with the work; after an abort it waits a little for the body to stop, then goes on without it. */
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

/** A deadline that stands still while a person thinks. */
function createDeadline(ms: number, passed: (ms: number) => void) {
  let left = ms;
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

/** Title and metadata that a running tool shows: the latest is told, at most every 50 ms. */
function createProgress(callId: string, tell: (event: ToolProgress) => Promise<void>) {
  const shown: { title?: string; metadata?: JsonObject } = {};
  let timer: NodeJS.Timeout | undefined;
  return {
    shown,
    update(update: { title?: string; metadata?: JsonObject }): void {
      Object.assign(shown, update);
      timer ??= setTimeout(() => {
        timer = undefined;
        // A failure to tell has aborted the call already.
        tell(create(ToolProgressSchema, { callId, ...shown })).catch(() => undefined);
      }, 50);
    },
    /** What was not told yet is in the terminal state. */
    stop(): void {
      clearTimeout(timer);
    },
  };
}
