import { create, fromJson, type JsonValue, type MessageInitShape, toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import { QuestionSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import {
  type WorkerAnswer,
  type WorkerAttachmentSchema,
  type WorkerCall,
  type WorkerCancel,
  WorkerCompletedSchema,
  type WorkerEndedCall,
  type WorkerFailedSchema,
  WorkerFailure,
  WorkerProgressSchema,
  type WorkerResultSchema,
  type WorkerStart,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { Ask } from "../../core/ask.ts";
import { plainJson } from "../../core/json.ts";
import { ChangedAfterApproval, InvalidInput, InvalidOutput, ToolFailure } from "../../tool/errors.ts";
import type { ChildResult, PlanContext, ToolContext, ToolResult } from "../../tool/tool.ts";
import { messageOf } from "./message-of.ts";
import { maxTitleLength, notHere, type Plans } from "./plans.ts";
import { checkedSize, type OpenBody, openBody, type RunningBody, type Send } from "./running-body.ts";

/** The running bodies of a process. */
export type Bodies = ReturnType<typeof createBodies>;

/** Creates it, without bodies. */
export function createBodies(plans: Plans, send: Send) {
  const bodies = new Map<string, OpenBody>();
  const made = {
    /** Enters a body and sends its result. */
    async start(start: WorkerStart): Promise<void> {
      const body = openBody(start, send, () => bodies.delete(start.assignment));
      bodies.set(start.assignment, body);
      const value = await runBody(plans, body);
      body.finish({ case: "result", value });
    },
    /** Stops a body; its result counts for a time, then it is STOPPED. */
    stop(assignment: string, message: string, graceMs: number): void {
      const body = bodies.get(assignment);
      if (!body || body.signal.aborted) return;
      body.stop(new DOMException(message, "AbortError"));
      const stopped = { kind: WorkerFailure.STOPPED, message: "the body did not stop in time" };
      // The body may ignore its signal; what it still does has no effect on the call.
      setTimeout(
        () => body.finish({ case: "result", value: { outcome: { case: "failed", value: stopped } } }),
        graceMs,
      ).unref();
    },
    cancel: ({ assignment, message, graceMs }: WorkerCancel): void =>
      made.stop(assignment, message || "The call was cancelled.", graceMs),
    /** Hands an answer of the service to the body that asked. */
    answer({ assignment, number, answer }: WorkerAnswer): void {
      const body = bodies.get(assignment);
      const waiting = body?.requests.get(number);
      body?.requests.delete(number);
      if (answer.case === "problem") waiting?.reject(new ToolFailure(answer.value));
      else waiting?.resolve(answer);
    },
    /** Forgets a body, and stops it if it runs. */
    end(assignment: string): void {
      const body = bodies.get(assignment);
      if (!body) return;
      bodies.delete(assignment);
      body.close();
      body.stop(new DOMException("The call is over.", "AbortError"));
    },
  };
  return made;
}

async function runBody(plans: Plans, body: OpenBody): Promise<MessageInitShape<typeof WorkerResultSchema>> {
  const { call, detail } = body.start;
  try {
    if (!call) throw new Error("the service starts no call");
    const { tool, input, plan, context } = await plans.enter(call, detail);
    const result = await tool.execute(input, plan, { ...context, ...bodyContext(body, call) });
    return { outcome: { case: "completed", value: await completedOf(body, result) } };
  } catch (error) {
    return { outcome: { case: "failed", value: failedOf(error, body.signal) } };
  }
}

/** Context of a body, as far as the service serves it over a connection. */
function bodyContext(
  body: RunningBody,
  call: WorkerCall,
): Omit<ToolContext, keyof PlanContext> & Pick<ToolContext, "reads"> {
  const { traceparent, tracestate } = body.start;
  return {
    messageId: call.messageId,
    model: { providerId: call.providerId, modelId: call.modelId },
    rootSessionId: call.rootSessionId,
    signal: body.signal,
    extra: call.metadata ?? {},
    ...(traceparent !== "" && { trace: { traceparent, ...(tracestate !== "" && { tracestate }) } }),
    metadata({ title, metadata }) {
      const value = {
        ...(title !== undefined && { title: String(title).slice(0, maxTitleLength) }),
        ...(metadata && { metadata: plainJson(metadata) }),
      };
      void body.report({ case: "progress", value: checkedSize(WorkerProgressSchema, value) });
    },
    output: (chunk) => body.write(0, typeof chunk === "string" ? Buffer.from(chunk) : chunk),
    ...requests(body),
    ...absent,
  };
}

/** Requests of a body to the service. */
function requests(body: RunningBody): Pick<ToolContext, "ask" | "question" | "state" | "calls"> {
  return {
    async ask(ask: Ask) {
      await body.request({ case: "ask", value: askOf(ask) });
    },
    async question(questions) {
      const value = { questions: questions.map((question) => create(QuestionSchema, question)) };
      const answer = await body.request({ case: "questions", value });
      const answers = answer.case === "answers" ? answer.value.answers : [];
      return answers.length === 0 ? undefined : answers;
    },
    state: {
      async get(name) {
        const answer = await body.request({ case: "getState", value: name });
        return answer.case === "state" ? toJson(ValueSchema, answer.value) : undefined;
      },
      async set(name, value: JsonValue) {
        await body.request({ case: "setState", value: { name, value: fromJson(ValueSchema, value) } });
      },
    },
    async calls(children, { atomic, changes }) {
      if (changes) notHere("calls({ changes })");
      const calls = children.map(({ tool, input }) => ({ tool, input: plainJson(input) }));
      const answer = await body.request({ case: "calls", value: { calls, atomic } });
      return answer.case === "calls" ? answer.value.calls.map(childResult) : [];
    },
  };
}

/** Converts an ask to what the service reads of it: it resolves paths, and adds cautions, itself. */
export function askOf({ permission, patterns, always = [], metadata }: Ask) {
  return {
    ...{ permission, patterns: [...patterns], always: [...always] },
    ...(metadata && { metadata: plainJson(metadata) }),
  };
}

function childResult(call: WorkerEndedCall): ChildResult {
  const { callId, completed, title, text, metadata, attachments, commandFailure, mayHaveEffects } = call;
  return {
    ...{ callId, title, text, attachments },
    status: completed ? "completed" : "error",
    ...(commandFailure !== "" && { commandFailure }),
    ...(mayHaveEffects && { mayHaveEffects }),
    ...(metadata && { metadata }),
  };
}

/** Parts of the context that only tools inside the service have. */
const absent = {
  answers: [],
  outside: [],
  files: { read: [], edit: [] },
  reads: { get: () => notHere("reads"), record: () => notHere("reads") },
  outputs: { read: () => notHere("outputs"), store: () => notHere("outputs"), remove: () => notHere("outputs") },
  durable: {
    get isResumed() {
      return notHere("durable");
    },
    get memo() {
      return notHere("durable");
    },
    store: () => notHere("durable"),
    isLeft: () => notHere("durable"),
  },
  beforeWrite: () => notHere("beforeWrite"),
  recordTraffic: () => notHere("recordTraffic"),
} satisfies Partial<ToolContext>;

/** Largest output inside the result; a longer one is sent in pieces before it. */
const maxInlineLength = 131_072;
const maxNoteLength = 4_096;

/** Sends long output and files of a result, and returns the rest. */
async function completedOf(
  body: RunningBody,
  result: ToolResult,
): Promise<MessageInitShape<typeof WorkerCompletedSchema>> {
  const { title, note, metadata, structured } = result;
  const output = await outputOf(body, result.output);
  const attachments: MessageInitShape<typeof WorkerAttachmentSchema>[] = [];
  for (const [index, file] of (result.attachments ?? []).entries()) {
    if ("data" in file) {
      const blob = index + 1;
      await body.write(blob, file.data);
      attachments.push({ blob, mime: file.mime, filename: file.filename ?? "" });
    } else attachments.push({ part: file });
  }
  return checkedSize(WorkerCompletedSchema, {
    ...(title !== undefined && { title: String(title).slice(0, maxTitleLength) }),
    ...(output !== undefined && { output }),
    ...(note !== undefined && { note: note.slice(0, maxNoteLength) }),
    ...(metadata && { metadata: plainJson(metadata) }),
    ...(structured !== undefined && { structured: fromJson(ValueSchema, structured) }),
    attachments,
  });
}

async function outputOf(body: RunningBody, output: string | undefined): Promise<string | undefined> {
  if (output === undefined || output.length <= maxInlineLength) return output;
  if (body.writtenBytes() > 0) {
    throw new ToolFailure(
      `The tool wrote output and returned another one of ${output.length} characters. Return at most ${maxInlineLength} then.`,
    );
  }
  await body.write(0, Buffer.from(output));
  return undefined;
}

/** Returns the failure of a body that threw. */
function failedOf(error: unknown, signal: AbortSignal): MessageInitShape<typeof WorkerFailedSchema> {
  const message = messageOf(error);
  if (signal.aborted) return { kind: WorkerFailure.STOPPED, message };
  if (error instanceof ToolFailure) return { kind: WorkerFailure.EXPECTED, message, noEffects: error.hadNoEffects };
  if (error instanceof InvalidInput) return { kind: WorkerFailure.INVALID_INPUT, message, noEffects: true };
  if (error instanceof InvalidOutput) return { kind: WorkerFailure.INVALID_OUTPUT, message };
  if (error instanceof ChangedAfterApproval) return { kind: WorkerFailure.CHANGED, message, noEffects: true };
  const stack = error instanceof Error ? error.stack : undefined;
  return { kind: WorkerFailure.DEFECT, message: (stack ?? message).slice(0, 16_000) };
}
