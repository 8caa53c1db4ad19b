import { createHash } from "node:crypto";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import { ToolExecutor } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { WorkerAsk, WorkerCallSchema, WorkerPlanned, WorkerTool } from "../../gen/opencode/tool/v1/worker_pb.ts";
import type { Ask } from "../core/ask.ts";
import { bindTool, defineTool, wholeInput } from "../tool/define-tool.ts";
import { ExecutorLost, ToolFailure } from "../tool/errors.ts";
import type { OfferContext, Plan, PlanContext, Tool, ToolContext, ToolResult } from "../tool/tool.ts";
import {
  type BodyKind,
  cancelBody,
  graceMs,
  type HostedBody,
  handleReport,
  receiveBytes,
  workerResultOf,
} from "./host.ts";
import { hungAfterMs, type WorkerConnection } from "./worker-connection.ts";

/** The process that runs the bodies of a tool. */
export interface WorkerHost {
  /** Names the process in errors: `The tool process of FILE`. */
  readonly name: string;
  /** Returns the setting that an error may come from; undefined if none is known. */
  explain(text: string): string | undefined;
  /** Does work with the connection of the process, which it starts if it does not run. Throws if it cannot. */
  use<T>(work: (connection: WorkerConnection) => Promise<T>): Promise<T>;
}

/** A plan with what the process wants back at the start. */
export interface DetailedPlan extends Plan {
  detail: Uint8Array;
}

/** The detail of a plan that the service makes itself. */
export const noDetail = new Uint8Array();

/** Makes the tool that a process declares. Throws if it cannot serve, such as for a schema that is not valid. */
export function workerTool(declared: WorkerTool, host: WorkerHost): Tool {
  const { name, description, version, permissionVersion, inputSchema = {}, outputSchema, annotations } = declared;
  const { source, asks, changeForm, keep, timeoutMs, providers, experimental } = declared;
  const { readOnly = false, idempotent = false, destructive = false, openWorld = false } = annotations ?? {};
  const tool = defineTool<JsonObject, DetailedPlan>({
    ...{ name, description, experimental, readOnly, idempotent, destructive, openWorld },
    executor: ToolExecutor.TOOL_PROCESS,
    input: inputSchema,
    ...(outputSchema && { outputSchema }),
    ...(version !== "" && { version }),
    ...(permissionVersion !== "" && { permissionVersion }),
    ...(asks && { permissions: asks.names }),
    ...(providers.length > 0 && { providers }),
    ...(changeForm !== "" && { changeForm: changeForm === "patch" ? "patch" : "replace" }),
    ...(timeoutMs > 0 && { timeoutMs }),
    ...(keep && { keep: keepOfWorker(keep) }),
    ...(declared.inits && { describe: (ctx) => describedFor(declared, host, ctx) }),
    plan: async (input: JsonObject, ctx): Promise<DetailedPlan> =>
      declared.plans
        ? await plannedBy(host, declared, input, ctx)
        : { ...wholePlan(declared, input), detail: noDetail },
    execute: (input, { plan, ...ctx }) =>
      host.use((connection) => {
        const call = { ...callOf(declared, input, ctx), ...runFields(ctx) };
        const { title, detail, timeoutMs = 0 } = plan;
        return explained(host, runWorkerBody(connection, { call, title, detail, timeoutMs }, ctx, host.name));
      }),
  });
  return bindTool(name, tool, source === "" ? undefined : source);
}

/** A longer output says more than an error. */
const maxErrorLength = 2_000;

/** Adds to an error, or to an output that may be one, the setting that it may come from. */
async function explained({ explain }: WorkerHost, ending: Promise<ToolResult>): Promise<ToolResult> {
  try {
    const result = await ending;
    const { output = "", note } = result;
    const why = output.length > maxErrorLength ? undefined : explain(output);
    return why === undefined ? result : { ...result, note: note === undefined ? why : `${note}\n\n${why}` };
  } catch (cause) {
    const why = cause instanceof ToolFailure ? explain(cause.message) : undefined;
    if (why === undefined || !(cause instanceof ToolFailure)) throw cause;
    throw new ToolFailure(`${cause.message}\n\n${why}`, { cause, hadNoEffects: cause.hadNoEffects });
  }
}

/** Returns the part of a long output that a declaration names. */
export function keepOfWorker({ end, lines, bytes }: NonNullable<WorkerTool["keep"]>): Partial<Tool["keep"]> {
  const known = (["head", "tail", "both"] as const).find((each) => each === end);
  return { ...(known && { end: known }), ...(lines > 0 && { lines }), ...(bytes > 0 && { bytes }) };
}

function callOf(
  { name }: WorkerTool,
  input: JsonObject,
  { sessionId, callId, agent, workspace }: Pick<PlanContext, "sessionId" | "callId" | "agent" | "workspace">,
): MessageInitShape<typeof WorkerCallSchema> {
  return {
    ...{ sessionId, callId, agent, input },
    ...{ tool: name, workspace: workspace.name, directory: workspace.directory },
  };
}

function runFields({ messageId, model, extra, rootSessionId }: ToolContext) {
  return { messageId, ...model, metadata: extra, rootSessionId };
}

/** Plans a call that asks for its whole input. What its body asks is known only later. */
function wholePlan({ name, coversBody }: WorkerTool, input: JsonObject): Plan {
  const { title, asks } = wholeInput(name, input);
  if (!coversBody) return { title, asks };
  return { title, asks: asks.map((ask) => ({ ...ask, coversBody: true, always: ["*"] })) };
}

async function plannedBy(
  host: WorkerHost,
  declared: WorkerTool,
  input: JsonObject,
  ctx: PlanContext,
): Promise<DetailedPlan> {
  const { name } = declared;
  const planned = await host.use(async (connection) => {
    try {
      return await connection.plan(callOf(declared, input, ctx));
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message : String(cause);
      throw new ToolFailure(`${host.name} did not plan the call of ${name}, so nothing was run: ${reason}.`, {
        ...{ cause, hadNoEffects: true },
      });
    }
  });
  if (planned.problem !== "") throw new ToolFailure(planned.problem, { hadNoEffects: true });
  return planOf(name, planned);
}

function planOf(name: string, planned: WorkerPlanned): DetailedPlan {
  const { title, asks, preview, binds } = planned;
  return {
    title: title || name,
    asks: asks.map(askOfMessage),
    ...(binds.length > 0 && { binds: binds.map((absolute) => ({ absolute })) }),
    ...(preview && { inspect: async () => ({ preview: () => preview }) }),
    ...boundDetail(planned),
  };
}

/** Returns the detail of a plan, bound by its digest, and the limit of its time. */
export function boundDetail({ detail, timeoutMs }: Pick<WorkerPlanned, "detail" | "timeoutMs">) {
  return {
    detail,
    ...(detail.length > 0 && { contentDigest: createHash("sha256").update(detail).digest("hex") }),
    ...(timeoutMs > 0 && { timeoutMs }),
  };
}

/** Returns the ask that a message of a worker states, or its template. */
export function askOfMessage({
  permission,
  patterns,
  always,
  metadata,
}: Pick<WorkerAsk, "permission" | "patterns" | "always" | "metadata">): Ask {
  return { permission, patterns, ...(always.length > 0 && { always }), ...(metadata && { metadata }) };
}

/** Returns the description of a tool for an agent; undefined if the tool is not for it. A process that does not answer changes nothing. */
async function describedFor(
  { name, description }: WorkerTool,
  { use }: WorkerHost,
  { agent }: OfferContext,
): Promise<string | undefined> {
  const inited = await use((connection) => connection.init(name, agent)).catch(() => undefined);
  if (inited === undefined) return description;
  return inited.problem === "" ? inited.description || description : undefined;
}

/** A body to enter. */
interface WorkerRun {
  call: MessageInitShape<typeof WorkerCallSchema>;
  /** The title and the detail of its plan. */
  title: string;
  detail: Uint8Array;
  /** Maximum duration as the tool declares it; 0 if it does not. */
  timeoutMs: number;
}

/** Bodies in tool processes, which end with their process. */
const inProcess: BodyKind<HostedBody> = {
  owner: "The tool",
  survives: false,
  shown: (text) => text,
  takeOutput: (body, output) => receiveBytes(body, output, body.ctx),
  takeResult(body, { outcome }) {
    body.hasResult = true;
    body.resolve(workerResultOf(outcome, body, body.ctx.signal));
  },
  requestProblem: () => undefined,
  contextOf: ({ ctx }) => ctx,
};

/** Enters a body in a process and waits for its result. `owner` names the process in the error of a call that lost it. */
async function runWorkerBody(
  connection: WorkerConnection,
  run: WorkerRun,
  ctx: ToolContext,
  owner: string,
): Promise<ToolResult> {
  const { promise, resolve, reject } = Promise.withResolvers<ToolResult>();
  // It never throws, since that would end the process for all bodies.
  const assignment = connection.open((report) => handleReport(body, inProcess, report).catch(reject));
  const { id, send } = assignment;
  const body: HostedBody = {
    ...{ assignment: id, ctx, send, resolve, reject },
    ...{ parts: new Map(), blobs: new Map(), received: new Map(), answers: new Map() },
    ...{ answersLength: 0, hasResult: false },
  };
  let hung: NodeJS.Timeout | undefined;
  const onLost = () => {
    const { message } = connection.ended.reason;
    if (ctx.signal.aborted) reject(ctx.signal.reason);
    reject(new ExecutorLost(`${owner} ended while the call ran: ${message}. What the call did is not known.`));
  };
  const onAbort = () => {
    cancelBody(body);
    const end = () => connection.end("it hung: a body was cancelled and the process did not report its end");
    hung = setTimeout(end, graceMs + hungAfterMs);
  };
  connection.ended.addEventListener("abort", onLost, { once: true });
  ctx.signal.addEventListener("abort", onAbort, { once: true });
  if (connection.ended.aborted) onLost();
  send({ case: "start", value: { ...run, assignment: id, attempt: 1, ...ctx.trace } });
  if (ctx.signal.aborted) onAbort();
  try {
    return await promise;
  } finally {
    clearTimeout(hung);
    connection.ended.removeEventListener("abort", onLost);
    ctx.signal.removeEventListener("abort", onAbort);
    if (!body.hasResult) send({ case: "ended", value: { assignment: id } });
    assignment.close();
  }
}
