/**
 * Runs a command through Toolgate as an agent, and approves it as a person, with @grpc/grpc-js. The messages are those
 * of gen/; a host with another stub generator uses that in place of `stream` and `unary` below.
 *
 *   node examples/typescript/grpc-js.ts 'git status' [CALL_ID]
 *
 * Run it twice: the second run attaches to the call of the first, prints the same, and runs nothing. See ../README.md.
 */
import { setTimeout as sleep } from "node:timers/promises";
import {
  create,
  type DescMessage,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { Client, type ClientReadableStream, credentials, Metadata, type ServiceError, status } from "@grpc/grpc-js";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";

const sessionId = "ses_example_grpc_js";
const [command = "date", callId = "call_1"] = process.argv.slice(2);
const { TOOLGATE_URL = "http://127.0.0.1:7420", TOOLGATE_CALLER_TOKEN, TOOLGATE_APPROVER_TOKEN } = process.env;
// Without pings a connection that died silently looks like a quiet one.
const client = new Client(new URL(TOOLGATE_URL).host, credentials.createInsecure(), {
  "grpc.keepalive_time_ms": 20_000,
});
const agent = bearer(TOOLGATE_CALLER_TOKEN);
const person = bearer(TOOLGATE_APPROVER_TOKEN);

const { storeId } = await unary(SessionService.method.createSession, agent, { sessionId });
const done = new AbortController();
await Promise.all([runAsAgent().finally(() => done.abort()), answerAsPerson(done.signal)]);
client.close();

/** Runs a call and prints its events, across lost connections, to its end. */
async function runAsAgent(): Promise<void> {
  // Both ids are ours, so the same request again attaches to the call; in another store it is refused.
  const request = { sessionId, callId, tool: "bash", input: { command, description: "Run a command" } };
  for (let afterSeq = 0n; ; ) {
    try {
      const events = stream(ToolService.method.executeTool, agent, { ...request, afterSeq, expectedStoreId: storeId });
      for await (const { event, lastSeq } of events) {
        if (event) print(event); // otherwise it is a heartbeat
        afterSeq = lastSeq;
      }
      return;
    } catch (error) {
      await pauseOrThrow(error, `going on after #${afterSeq}`);
    }
  }
}

/** Approves whatever the session asks, until the signal. */
async function answerAsPerson(signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const news = stream(PermissionService.method.watchPermissions, person, { sessionId });
    const leave = () => news.cancel();
    signal.addEventListener("abort", leave, { once: true });
    try {
      // Each stream starts with all open asks, so after a cut nothing is missed.
      for await (const { event } of news) if (event?.event.case === "permissionAsked") await approve(event.event.value);
    } catch (error) {
      if (!signal.aborted) await pauseOrThrow(error, "watching again");
    } finally {
      signal.removeEventListener("abort", leave);
    }
  }
}

async function approve({ id, permission, display, digest }: PermissionRequest): Promise<void> {
  console.log(`person: ${permission} ${display.join(" ")} may run once`);
  try {
    // With the digest, what was shown is what is approved.
    const answer = { sessionId, permissionId: id, reply: PermissionReply.ONCE, expectedDigest: digest };
    await unary(PermissionService.method.respondToPermission, person, answer);
  } catch (error) {
    if (!isServiceError(error) || error.code !== status.FAILED_PRECONDITION) throw error;
    console.log(`person: ${error.details}`); // somebody else was first
  }
}

function print({ seq, event }: SessionEvent): void {
  if (event.case === "part") console.log(`#${seq} ${event.value.state.case}`);
  if (event.case === "output") console.log(`#${seq} output: ${new TextDecoder().decode(event.value.data).trimEnd()}`);
  if (event.case === "permissionAsked") console.log(`#${seq} asks: ${event.value.permission}`);
  if (event.case === "permissionSettled") console.log(`#${seq} answered by ${event.value.by}`);
}

/** A lost connection and a server that restarts are UNAVAILABLE; anything else is an answer. */
async function pauseOrThrow(error: unknown, what: string): Promise<void> {
  if (!isServiceError(error) || error.code !== status.UNAVAILABLE) throw error;
  console.error(`connection lost; ${what}`);
  await sleep(1_000);
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && "details" in error;
}

function bearer(token: string | undefined): Metadata {
  const metadata = new Metadata();
  metadata.set("authorization", `Bearer ${token}`);
  return metadata;
}

function stream<I extends DescMessage, O extends DescMessage>(
  { parent, name, input, output }: DescMethodServerStreaming<I, O>,
  metadata: Metadata,
  request: MessageInitShape<I>,
): ClientReadableStream<MessageShape<O>> {
  return client.makeServerStreamRequest(
    `/${parent.typeName}/${name}`,
    (message: MessageShape<I>) => Buffer.from(toBinary(input, message)),
    (bytes) => fromBinary(output, bytes),
    create(input, request),
    metadata,
  );
}

function unary<I extends DescMessage, O extends DescMessage>(
  { parent, name, input, output }: DescMethodUnary<I, O>,
  metadata: Metadata,
  request: MessageInitShape<I>,
): Promise<MessageShape<O>> {
  return new Promise((resolve, reject) => {
    client.makeUnaryRequest(
      `/${parent.typeName}/${name}`,
      (message: MessageShape<I>) => Buffer.from(toBinary(input, message)),
      (bytes) => fromBinary(output, bytes),
      create(input, request),
      metadata,
      (error, answer) => (answer === undefined ? reject(error) : resolve(answer)),
    );
  });
}
