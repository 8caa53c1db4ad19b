/**
 * Runs a command through Toolgate as an agent, and approves it as a person, with nothing but fetch: in a browser it is
 * the same (list the page's origin under `origins` in toolgate.toml).
 *
 *   node examples/typescript/connect-web.ts 'git status' [CALL_ID]
 *
 * Run it twice: the second run attaches to the call of the first, prints the same, and runs nothing. See ../README.md.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-web";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import type { SessionEvent } from "../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type PermissionRequest } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";

const sessionId = "ses_example_web";
const [command = "date", callId = "call_1"] = process.argv.slice(2);
const { TOOLGATE_URL = "http://127.0.0.1:7420", TOOLGATE_CALLER_TOKEN, TOOLGATE_APPROVER_TOKEN } = process.env;
const agent = as(TOOLGATE_CALLER_TOKEN);
const tools = createClient(ToolService, agent);
const permissions = createClient(PermissionService, as(TOOLGATE_APPROVER_TOKEN));

const { storeId } = await createClient(SessionService, agent).createSession({ sessionId });
const done = new AbortController();
await Promise.all([runAsAgent().finally(() => done.abort()), answerAsPerson(done.signal)]);

/** Runs a call and prints its events, across lost connections, to its end. */
async function runAsAgent(): Promise<void> {
  // Both ids are ours, so the same request again attaches to the call; in another store it is refused.
  const request = { sessionId, callId, tool: "bash", input: { command, description: "Run a command" } };
  for (let afterSeq = 0n; ; ) {
    try {
      for await (const { event, lastSeq } of tools.executeTool({ ...request, afterSeq, expectedStoreId: storeId })) {
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
    try {
      // Each stream starts with all open asks, so after a cut nothing is missed.
      for await (const { event } of permissions.watchPermissions({ sessionId }, { signal })) {
        if (event?.event.case === "permissionAsked") await approve(event.event.value);
      }
    } catch (error) {
      if (!signal.aborted) await pauseOrThrow(error, "watching again");
    }
  }
}

async function approve({ id, permission, display, digest }: PermissionRequest): Promise<void> {
  console.log(`person: ${permission} ${display.join(" ")} may run once`);
  try {
    // With the digest, what was shown is what is approved.
    const answer = { sessionId, permissionId: id, reply: PermissionReply.ONCE, expectedDigest: digest };
    await permissions.respondToPermission(answer);
  } catch (error) {
    const refusal = ConnectError.from(error);
    if (refusal.code !== Code.FailedPrecondition) throw error;
    console.log(`person: ${refusal.rawMessage}`); // somebody else was first
  }
}

function print({ seq, event }: SessionEvent): void {
  if (event.case === "part") console.log(`#${seq} ${event.value.state.case}`);
  if (event.case === "output") console.log(`#${seq} output: ${new TextDecoder().decode(event.value.data).trimEnd()}`);
  if (event.case === "permissionAsked") console.log(`#${seq} asks: ${event.value.permission}`);
  if (event.case === "permissionSettled") console.log(`#${seq} answered by ${event.value.by}`);
}

/** A lost connection says nothing of ours, a server that restarts says "unavailable"; anything else is an answer. */
async function pauseOrThrow(error: unknown, what: string): Promise<void> {
  const failure = ConnectError.from(error);
  const isAnswer = failure.findDetails(ErrorInfoSchema).length > 0 && failure.code !== Code.Unavailable;
  if (isAnswer) throw error;
  console.error(`connection lost; ${what}`);
  await sleep(1_000);
}

function as(token: string | undefined) {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  return createConnectTransport({ baseUrl: TOOLGATE_URL, interceptors: [authorize] });
}
