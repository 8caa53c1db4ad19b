import type { MessageInitShape } from "@bufbuild/protobuf";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { WorkerCallSchema, WorkerReport } from "../../gen/opencode/tool/v1/worker_pb.ts";
import { ExecutorLost, ToolFailure } from "../tool/errors.ts";
import type { ToolContext, ToolResult } from "../tool/tool.ts";
import { answerRequest } from "./body-request.ts";
import { type ReceivedFiles, receiveBytes, workerResultOf } from "./body-result.ts";
import { hungAfterMs, type WorkerAssignment, type WorkerConnection } from "./worker-connection.ts";

/** A body to enter. */
export interface WorkerRun {
  call: MessageInitShape<typeof WorkerCallSchema>;
  /** The title and the detail of its plan. */
  title: string;
  detail: Uint8Array;
  /** Maximum duration as the tool declares it; 0 if it does not. */
  timeoutMs: number;
}

/** State of one entered body. */
interface Body extends ReceivedFiles {
  readonly assignment: WorkerAssignment;
  readonly ctx: ToolContext;
  openRequests: number;
  hasResult: boolean;
  resolve(result: ToolResult): void;
  reject(error: unknown): void;
}

/** Time in which the result of a cancelled body counts; the engine waits for it no longer. */
const graceMs = 4_000;
const maxOpenRequests = 64;

/** Enters a body in a process and waits for its result. `owner` names the process in the error of a call that lost it. */
export async function runWorkerBody(
  connection: WorkerConnection,
  run: WorkerRun,
  ctx: ToolContext,
  owner: string,
): Promise<ToolResult> {
  const { promise, resolve, reject } = Promise.withResolvers<ToolResult>();
  const assignment = connection.open((report) => onReport(body, report));
  const body: Body = {
    ...{ assignment, ctx, resolve, reject },
    ...{ parts: new Map(), blobs: new Map(), received: new Map(), openRequests: 0, hasResult: false },
  };
  let hung: NodeJS.Timeout | undefined;
  const onLost = () => {
    const { message } = connection.ended.reason;
    if (ctx.signal.aborted) reject(ctx.signal.reason);
    reject(new ExecutorLost(`${owner} ended while the call ran: ${message}. What the call did is not known.`));
  };
  const onAbort = () => {
    assignment.send({ case: "cancel", value: { assignment: assignment.id, ...causeOf(ctx.signal.reason), graceMs } });
    const end = () => connection.end("it hung: a body was cancelled and the process did not report its end");
    hung = setTimeout(end, graceMs + hungAfterMs);
  };
  connection.ended.addEventListener("abort", onLost, { once: true });
  ctx.signal.addEventListener("abort", onAbort, { once: true });
  if (connection.ended.aborted) onLost();
  assignment.send({ case: "start", value: { ...run, assignment: assignment.id, attempt: 1, ...ctx.trace } });
  if (ctx.signal.aborted) onAbort();
  try {
    return await promise;
  } finally {
    clearTimeout(hung);
    connection.ended.removeEventListener("abort", onLost);
    ctx.signal.removeEventListener("abort", onAbort);
    if (!body.hasResult) assignment.send({ case: "ended", value: { assignment: assignment.id } });
    assignment.close();
  }
}

/** Describes for a body why it is cancelled. */
function causeOf(reason: unknown): { reason: ToolErrorReason; message: string } {
  const coded = typeof reason === "object" && reason !== null && "reason" in reason ? Number(reason.reason) : 0;
  return {
    reason: Object.values(ToolErrorReason).find((known) => known === coded) || ToolErrorReason.CANCELLED,
    message: reason instanceof Error ? reason.message : "",
  };
}

/** Handles a report. It never throws, since that would end the process for all bodies. */
async function onReport(body: Body, report: WorkerReport["report"]): Promise<void> {
  if (body.hasResult) return;
  try {
    switch (report.case) {
      case "progress": {
        const { title, metadata } = report.value;
        return body.ctx.metadata({ ...(title !== undefined && { title }), ...(metadata && { metadata }) });
      }
      case "output":
        return await receiveBytes(body, report.value, body.ctx);
      case "request":
        return void onRequest(body, report.value);
      case "result":
        body.hasResult = true;
        return body.resolve(workerResultOf(report.value.outcome, body, body.ctx.signal));
    }
  } catch (error) {
    body.reject(error);
  }
}

async function onRequest(body: Body, request: Parameters<typeof answerRequest>[0]): Promise<void> {
  const { number } = request;
  const { id } = body.assignment;
  body.openRequests += 1;
  try {
    if (body.openRequests > maxOpenRequests)
      throw new ToolFailure(`The tool made more than ${maxOpenRequests} requests at the same time.`);
    const answer = await answerRequest(request, body.ctx, body.parts);
    if (answer !== undefined) {
      body.assignment.send({ case: "answer", value: { assignment: id, number, answer } });
    } else body.assignment.send({ case: "answer", value: { assignment: id, number } });
  } catch (error) {
    // A refusal ends the call, and its body learns only that.
    if (!body.hasResult) body.reject(error);
  } finally {
    body.openRequests -= 1;
  }
}
