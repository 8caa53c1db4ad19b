/** A process that runs tools: speaks the protocol over descriptors 3 and 4, and does what the input of a call says. */
import { writeSync } from "node:fs";
import { Socket } from "node:net";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { sizeDelimitedDecodeStream, sizeDelimitedEncode } from "@bufbuild/protobuf/wire";
import {
  WorkerFailure,
  type WorkerReportSchema,
  type WorkerStart,
  WorkRequestSchema,
  WorkResponseSchema,
} from "../../gen/opencode/tool/v1/worker_pb.ts";

const input = new Socket({ fd: 3 });
const out = new Socket({ fd: 4 });

function send(message: MessageInitShape<typeof WorkRequestSchema>["message"]): void {
  out.write(sizeDelimitedEncode(WorkRequestSchema, create(WorkRequestSchema, message ? { message } : {})));
}

const schema = { type: "object", properties: { does: { type: "string" } }, required: ["does"] };
const hello = {
  protocol: 1,
  sdk: "scripted",
  tools: [
    { name: "scripted", description: "Does it.", inputSchema: schema, coversBody: true, source: "s1" },
    { name: "planned", description: "Plans it.", inputSchema: schema, plans: true },
    { name: "varied", description: "For all.", inputSchema: schema, inits: true },
  ],
  plugins: [{ name: "guard", hooks: ["tool.execute.before"] }],
};

/** Reports of a body for what its input says. */
const reports: Readonly<Record<string, readonly MessageInitShape<typeof WorkerReportSchema>["report"][]>> = {
  text: [
    { case: "progress", value: { title: "half", metadata: { step: 1 } } },
    { case: "result", value: { outcome: { case: "completed", value: { output: "done", note: "noted" } } } },
  ],
  files: [
    { case: "output", value: { blob: 0, offset: 0n, data: Buffer.from("one ") } },
    { case: "output", value: { blob: 1, offset: 0n, data: Buffer.from("im") } },
    { case: "output", value: { blob: 0, offset: 4n, data: Buffer.from("two") } },
    { case: "output", value: { blob: 1, offset: 2n, data: Buffer.from("age") } },
    {
      case: "result",
      value: {
        outcome: {
          case: "completed",
          value: { attachments: [{ blob: 1, mime: "image/png", filename: "a.png" }] },
        },
      },
    },
  ],
  gap: [{ case: "output", value: { blob: 0, offset: 3n, data: Buffer.from("lost") } }],
  foreign: [
    {
      case: "result",
      value: { outcome: { case: "completed", value: { attachments: [{ part: { url: "toolgate-output:out_1" } }] } } },
    },
  ],
  expected: failure(WorkerFailure.EXPECTED),
  defect: failure(WorkerFailure.DEFECT),
  changed: failure(WorkerFailure.CHANGED),
  input: failure(WorkerFailure.INVALID_INPUT),
  ask: [
    {
      case: "request",
      value: { number: 1, request: { case: "ask", value: { permission: "deploy", patterns: ["x"] } } },
    },
  ],
  state: [
    {
      case: "request",
      value: {
        number: 1,
        request: {
          case: "setState",
          value: { name: "n", value: { kind: { case: "stringValue", value: "stored" } } },
        },
      },
    },
    { case: "request", value: { number: 2, request: { case: "getState", value: "n" } } },
  ],
  calls: [
    {
      case: "request",
      value: { number: 1, request: { case: "calls", value: { calls: [{ tool: "read", input: { a: 1 } }] } } },
    },
  ],
};

function failure(kind: WorkerFailure): MessageInitShape<typeof WorkerReportSchema>["report"][] {
  const value = { kind, message: "it failed", noEffects: true };
  return [{ case: "result", value: { outcome: { case: "failed", value } } }];
}

function complete(assignment: string, output: string): void {
  const report = { case: "result", value: { outcome: { case: "completed", value: { output } } } } as const;
  send({ case: "report", value: { assignment, report } });
}

function start({ assignment, call, detail }: WorkerStart): void {
  const does = String(call?.input?.does);
  if (does === "exit") process.exit(3);
  if (does === "garbage") writeSync(4, "this is no message\n".repeat(20));
  if (does === "huge") writeSync(4, Buffer.from([0xff, 0xff, 0xff, 0x7f]));
  if (does === "invalid") send({ case: "report", value: { assignment: "", report: { case: "progress", value: {} } } });
  if (does === "nothing") send(undefined);
  if (does === "number")
    send({
      case: "report",
      value: { assignment, report: { case: "progress", value: { metadata: { a: Number.NaN } } } },
    });
  if (does === "block") for (;;);
  if (does === "detail") complete(assignment, Buffer.from(detail).toString());
  for (const report of reports[does] ?? []) if (report) send({ case: "report", value: { assignment, report } });
}

for await (const { message } of sizeDelimitedDecodeStream(WorkResponseSchema, input)) {
  switch (message.case) {
    case "load":
      if (message.value.files[0] === "mute") break;
      send({ case: "hello", value: hello });
      break;
    case "plan": {
      const { planId, call } = message.value;
      const title = String(call?.input?.does);
      if (title === "silent") break;
      const problem = title === "wrong" ? "nothing to plan" : "";
      const asks = [{ permission: "deploy", patterns: [title], always: ["*"] }];
      send({ case: "planned", value: { planId, title, asks, detail: Buffer.from("kept"), problem } });
      break;
    }
    case "init": {
      const { initId, agent } = message.value;
      const problem = agent === "other" ? "not for it" : "";
      send({ case: "inited", value: { initId, description: `For ${agent}.`, problem } });
      break;
    }
    case "hook": {
      const { hookId, input, output } = message.value;
      if (input?.tool === "silent") break;
      const outcome =
        input?.tool === "guarded"
          ? ({ case: "problem", value: "it is guarded" } as const)
          : ({ case: "output", value: { ...output, args: { hooked: true } } } as const);
      send({ case: "hooked", value: { hookId, outcome } });
      break;
    }
    case "start":
      start(message.value);
      break;
    case "cancel": {
      const [report] = failure(WorkerFailure.STOPPED);
      if (report) send({ case: "report", value: { assignment: message.value.assignment, report } });
      break;
    }
    case "answer": {
      const { assignment, number, answer } = message.value;
      if (answer.case === "state") complete(assignment, JSON.stringify(answer.value.kind));
      else if (answer.case === "calls") {
        const part = answer.value.calls[0]?.attachments[0];
        const attachments = part ? [{ part }] : [];
        const completed = { output: answer.value.calls.map(({ text }) => text).join(), attachments };
        const report = { case: "result", value: { outcome: { case: "completed", value: completed } } } as const;
        send({ case: "report", value: { assignment, report } });
      } else if (answer.case === undefined && number === 1) complete(assignment, "allowed");
      break;
    }
  }
}
