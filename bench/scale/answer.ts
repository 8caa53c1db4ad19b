import { join } from "node:path";
import { fromBinary } from "@bufbuild/protobuf";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ExecuteToolResponseSchema, ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { openSession } from "../echoes.ts";
import type { Goal } from "../goals.ts";
import { createHttp2Client, type Http2Client } from "../http2-client.ts";
import type { Processes } from "../processes.ts";
import { startRedis } from "../redis.ts";
import { percentile, table } from "../report.ts";
import { ratios } from "../rounds.ts";
import { startToolgate } from "../toolgate.ts";
import { createAskingFile } from "./asking-file.ts";

/** Milliseconds, one figure for each answer. */
export interface Answers {
  /** From sending the reply at one replica until the caller of another gets the event that its call runs. */
  readonly running: number[];
  /** The floor: a unary call of a server that does nothing, then three commands to Redis. */
  readonly floor: number[];
  /** The floor once more. */
  readonly control: number[];
}

/** Asks at one replica and answers at another, one call at a time. */
export async function measureAnswers(
  processes: Processes,
  { warmUp, answers }: { warmUp: number; answers: number },
): Promise<Answers> {
  const redis = await startRedis(processes);
  const a = await startToolgate(processes, { name: "answer-a", store: redis.url });
  const b = await startToolgate(processes, { name: "answer-b", store: redis.url });
  const bare = await processes.start([join(import.meta.dirname, "../servers/connect.ts")]);
  const bareClient = createHttp2Client(bare.url);
  const [caller, approver] = [a.connect("caller"), b.connect("approver-1")];
  const [sessionId, filePath] = [await openSession(caller), await createAskingFile(a.workspace)];

  const floor = async () => {
    const call = { sessionId, callId: "bare", tool: "echo", input: { text: "bare" } };
    await bareClient.connect(ToolService.method.callTool, call);
    for (let trip = 0; trip < 3; trip += 1) await redis.client.ping();
  };
  const result: Answers = { running: [], floor: [], control: [] };
  for (let index = -warmUp; index < answers; index += 1) {
    const call = await askOnce(caller, { sessionId, callId: `call_${index}`, tool: "read", input: { filePath } });
    const running = await timed(async () => {
      const answer = { sessionId, permissionId: await call.asked, reply: PermissionReply.ONCE };
      await Promise.all([call.running, approver.connect(PermissionService.method.respondToPermission, answer)]);
    });
    await call.completed;
    const [least, again] = [await timed(floor), await timed(floor)];
    if (index < 0) continue;
    result.running.push(running);
    result.floor.push(least);
    result.control.push(again);
  }
  for (const client of [caller, approver, bareClient]) client.close();
  await processes.stopAll();
  return result;
}

/** Both distributions, and how they compare in each fiftieth answer. */
export function answersReport({ running, floor, control }: Answers, print: (text: string) => void): Goal[] {
  const row = (label: string, values: readonly number[]) => [
    label,
    ...[0.5, 0.99].map((share) => percentile(values, share).toFixed(2)),
  ];
  print(
    table(
      ["ms", "p50", "p99"],
      [
        row("reply at replica B → running at replica A", running),
        row("a bare unary call + three Redis round trips", floor),
      ],
    ),
  );
  const p50s = (values: readonly number[]) =>
    Array.from({ length: Math.ceil(values.length / share) }, (_, i) =>
      percentile(values.slice(i * share, (i + 1) * share), 0.5),
    );
  return [
    {
      ...{ figure: "answer at one replica → running at another ÷ the floor, p50", limit: 2.2, unit: "×" },
      values: ratios(p50s(running), p50s(floor)),
      control: ratios(p50s(control), p50s(floor)),
    },
  ];
}

/** Answers of which each median is taken. */
const share = 50;

/** Makes a call that asks; resolves when it has. */
export async function askOnce(
  client: Http2Client,
  call: { sessionId: string; callId: string; tool: string; input: object },
) {
  const [asked, running, completed] = [
    Promise.withResolvers<string>(),
    Promise.withResolvers<void>(),
    Promise.withResolvers<void>(),
  ];
  const request = { ...call, input: { ...call.input } };
  const stream = client.stream(ToolService.method.executeTool, request, (message) => {
    const event = fromBinary(ExecuteToolResponseSchema, message).event?.event;
    if (event?.case === "permissionAsked") asked.resolve(event.value.id);
    if (event?.case === "part" && event.value.state.case === "running") running.resolve();
    if (event?.case === "part" && event.value.state.case === "completed") completed.resolve();
  });
  const early = stream.ended.then(() => Promise.reject(new Error(`${call.callId} ended before it was completed`)));
  await Promise.race([asked.promise, early]);
  return {
    asked: asked.promise,
    running: Promise.race([running.promise, early]),
    completed: Promise.race([completed.promise, early]),
  };
}

async function timed(work: () => Promise<void>): Promise<number> {
  const began = performance.now();
  await work();
  return performance.now() - began;
}
