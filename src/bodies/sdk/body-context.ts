import { create, fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { ValueSchema } from "@bufbuild/protobuf/wkt";
import { QuestionSchema } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { WorkerCall, WorkerEndedCall } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import type { Ask } from "../../core/ask.ts";
import { plainJson } from "../../tool/plain-json.ts";
import type { ChildResult, PlanContext, ToolContext } from "../../tool/tool.ts";
import { notHere } from "./plans.ts";
import type { RunningBody } from "./running-body.ts";

/** Context of a body, as far as the service serves it over a connection. */
export function bodyContext(
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
      const value = { ...(title !== undefined && { title }), ...(metadata && { metadata: plainJson(metadata) }) };
      void body.report({ case: "progress", value });
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
