import type { MessageInitShape } from "@bufbuild/protobuf";
import type { ToolErrorReason } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type {
  WorkerBodyRequest,
  WorkerCallSchema,
  WorkerOutput,
  WorkerReport,
  WorkerResult,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { WorkerRights } from "../../core/principal.ts";
import { visible } from "../../core/visible.ts";
import { NotEntered, ToolFailure } from "../../tool/errors.ts";
import type { RemoteRun } from "../../tool/remote.ts";
import type { ToolContext, ToolResult } from "../../tool/tool.ts";
import { answerBody, type BodyKind, cancelBody, graceMs, handleReport, receiveBytes, workerResultOf } from "../host.ts";
import { askProblem, matches, mayAsk } from "./declared-tool.ts";
import { bytesOfReport, filesProblem, maxFileBytes, waitingProblem } from "./waiting-reports.ts";
import { keyOfCall, type RemoteBody, sendTo, type WorkerProcess } from "./worker-process.ts";

/** A body to enter, or to continue. */
export interface BodyStart {
  readonly tool: string;
  readonly definitionId: string;
  readonly call: MessageInitShape<typeof WorkerCallSchema>;
  readonly title: string;
  readonly detail: Uint8Array;
  /** Maximum duration as plan or tool set it; 0 if they do not. */
  readonly timeoutMs: number;
}

/** Bodies in workers, which go on over the next connection. Nothing that they say is trusted. */
const inWorker: BodyKind<RemoteBody> = {
  owner: "The worker",
  survives: true,
  shown: visible,
  takeOutput,
  takeResult,
  requestProblem,
  contextOf,
};

/** Enters a body in a worker, or continues it, and waits for its result, however often the worker connects again. */
export async function runRemoteBody(
  process: WorkerProcess,
  start: BodyStart,
  ctx: ToolContext & { remote: RemoteRun },
  { isClosed, bodies, refused }: Pick<RemoteBody, "isClosed" | "bodies" | "refused">,
): Promise<ToolResult> {
  const { promise, resolve, reject } = Promise.withResolvers<ToolResult>();
  const { remote, signal } = ctx;
  const { assignment } = remote.mark;
  const body: RemoteBody = {
    ...{ process, assignment, tool: start.tool, ctx, remote, isClosed, bodies, refused, resolve, reject },
    send: (message) => sendTo(process, message),
    ...{
      handled: Promise.resolve(),
      waiting: { output: 0, files: 0 },
      receipt: "none",
      answers: new Map(),
      answersLength: 0,
      hasResult: false,
      isEntered: remote.isAdopted,
    },
    parts: new Map(remote.files.map((file) => [file.url, file])),
    ...{ blobs: new Map(), received: new Map([[0, remote.storedBytes]]) },
  };
  process.bodies.set(assignment, body);
  bodies.set(keyOfCall(ctx), body);
  const onAbort = () => {
    // Another run goes on with the call: its body is not stopped.
    if (!isEnd(signal.reason)) return reject(signal.reason);
    cancelBody(body);
    setTimeout(() => reject(signal.reason), graceMs).unref();
  };
  signal.addEventListener("abort", onAbort, { once: true });
  if (remote.isAdopted) {
    process.taken.set(assignment, start.definitionId);
    sendReceipt(body);
    const held = process.adopting.get(assignment);
    process.adopting.delete(assignment);
    if (held?.problem !== undefined) reject(new ToolFailure(held.problem));
    else for (const report of held?.reports ?? []) takeReport(body, report);
  } else {
    const { call, title, detail, timeoutMs } = start;
    const value = { assignment, call, title, detail, timeoutMs, attempt: 1, ...ctx.trace };
    sendTo(process, { case: "start", value });
  }
  if (signal.aborted) onAbort();
  try {
    return await promise;
  } catch (error) {
    if (signal.aborted && !isEnd(signal.reason)) forgetBody(body);
    throw error;
  } finally {
    signal.removeEventListener("abort", onAbort);
    if (remote.isAdopted) process.taken.delete(assignment);
  }
}

/** Sends a worker again what it may have missed about a body that it holds. */
export function resumeBody(body: RemoteBody): void {
  const { ctx, hasResult, process, answers } = body;
  sendReceipt(body);
  for (const answer of answers.values()) if (answer) sendTo(process, answer);
  if (ctx.signal.aborted && isEnd(ctx.signal.reason) && !hasResult) cancelBody(body);
}

/** Ends a body whose call has ended, or goes on as another run. */
export function endBody(body: RemoteBody): void {
  const { process, ctx, hasResult, remote } = body;
  const { mark } = remote;
  forgetBody(body);
  const value = { assignment: mark.assignment, recorded: hasResult && !ctx.signal.aborted };
  sendTo(process, { case: "ended", value });
}

function forgetBody(body: RemoteBody): void {
  const { process, ctx, bodies, remote } = body;
  process.bodies.delete(remote.mark.assignment);
  // Another run of the call may have taken its place.
  if (bodies.get(keyOfCall(ctx)) === body) bodies.delete(keyOfCall(ctx));
}

/** The reason of an abort that ends the call names it; any other one leaves the call to another run. */
function isEnd(reason: unknown): reason is { reason: ToolErrorReason } {
  return typeof reason === "object" && reason !== null && "reason" in reason && typeof reason.reason === "number";
}

/** Takes a report. A report that breaks a rule ends the call; this never throws. */
export function takeReport(body: RemoteBody, { report }: WorkerReport): void {
  if (body.hasResult) return;
  body.isEntered ||= !(report.case === "result" && report.value.outcome.case === "notEntered");
  if (report.case === "request") return void answerBody(body, inWorker, report.value);
  const { kind, bytes } = bytesOfReport({ report });
  body.waiting[kind] += bytes;
  const problem = waitingProblem(body.waiting);
  if (problem !== undefined) body.reject(new ToolFailure(problem));
  body.handled = body.handled
    .then(() => handleReport(body, inWorker, report))
    .catch((error: unknown) => body.reject(error))
    .finally(() => {
      body.waiting[kind] -= bytes;
    });
}

/** Takes bytes that did not come before: all may be sent again over the next connection. */
async function takeOutput(body: RemoteBody, output: WorkerOutput): Promise<void> {
  const { blob, offset, data } = output;
  const before = body.received.get(blob) ?? 0;
  if (offset > BigInt(before))
    throw new ToolFailure(
      `The worker lost output: ${before} bytes of blob ${blob} came, the next ones begin at ${offset}.`,
    );
  const fresh = data.subarray(before - Number(offset));
  if (fresh.length > 0) await receiveBytes(body, { ...output, offset: BigInt(before), data: fresh }, body.ctx);
  const inMemory = [...body.received].reduce((sum, [each, bytes]) => (each === 0 ? sum : sum + bytes), 0);
  if (inMemory > maxFileBytes) throw new ToolFailure(filesProblem);
  if (blob === 0) sendReceipt(body);
}

/** Sends what is stored of the output, as soon as it is. Attachments are in memory and get no receipt. */
function sendReceipt(body: RemoteBody): void {
  const { process, remote } = body;
  if (body.receipt !== "none") {
    body.receipt = "again";
    return;
  }
  body.receipt = "waiting";
  remote
    .stored()
    .then((stored) => {
      const { assignment } = remote.mark;
      sendTo(process, { case: "receipt", value: { assignment, stored: { 0: BigInt(stored) } } });
    })
    // The next write or the end of the output fails, too, and ends the call.
    .catch(() => undefined)
    .finally(() => {
      const isBehind = body.receipt === "again";
      body.receipt = "none";
      if (isBehind) sendReceipt(body);
    });
}

function takeResult(body: RemoteBody, { outcome }: WorkerResult): void {
  if (outcome.case === "notEntered") {
    // Otherwise the body would run twice.
    if (body.isEntered) throw new ToolFailure("The worker reported of the body, and then that it had not entered it.");
    endBody(body);
    const reason = visible(outcome.value);
    body.refused(body.process, body.ctx, reason);
    body.reject(new NotEntered(reason));
    return;
  }
  body.hasResult = true;
  if (outcome.case === "failed") outcome.value.message = visible(outcome.value.message);
  const result = workerResultOf(outcome, body, body.ctx.signal);
  body.resolve({ ...result, ...(result.title !== undefined && { title: visible(result.title) }) });
}

/** Says why a body of a worker may not request something; throws if that ends the call. */
function requestProblem(
  { process: { rights }, tool, isClosed }: RemoteBody,
  { request }: WorkerBodyRequest,
): string | undefined {
  if (request.case === "questions") return "A worker cannot ask questions; ask for a permission.";
  if (request.case === "ask" && !mayAsk(request.value.permission, tool, rights, isClosed))
    throw new ToolFailure(`Nothing was asked: ${askProblem(request.value.permission, tool, isClosed)}.`);
  return request.case === "calls" ? callProblem(request.value.calls, rights) : undefined;
}

function callProblem(calls: readonly { tool: string }[], { calls: allowed }: WorkerRights): string | undefined {
  const wrong = calls.find(({ tool }) => !matches(tool, allowed));
  if (wrong === undefined) return undefined;
  const may = allowed.length === 0 ? "no tools" : `only ${allowed.join(", ")}`;
  return `Nothing was called: the token of this worker may call ${may}, and not "${wrong.tool}".`;
}

/**
 * Context in which a request of a body is answered: it is found again by its number, and workers of a principal share state and see
 * no other.
 */
function contextOf({ ctx, process: { principal } }: RemoteBody, number: number): ToolContext {
  const nameOf = (name: string) => `worker ${principal} ${name}`;
  return {
    ...ctx,
    ask: (ask, preview) => ctx.ask(ask, preview, String(number)),
    calls: (children, options) => ctx.calls(children, { ...options, key: String(number) }),
    state: {
      get: (name) => ctx.state.get(nameOf(name)),
      set: (name, value) => ctx.state.set(nameOf(name), value),
    },
  };
}
