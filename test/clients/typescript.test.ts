import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { CallFailed, connect, type PermissionRequest, ToolEffects, ToolErrorReason } from "../../src/client/client.ts";
import { type Principal, useService } from "../e2e/service.ts";
import { layWire, type Wire } from "./wire.ts";

const service = useService();
let wire: Wire;
beforeAll(async () => {
  wire = await layWire(service);
});
afterAll(() => wire.close());

function clientOf(who: Principal) {
  const client = connect({ url: wire.url, token: `${who}-token-for-tests` });
  onTestFinished(client.close);
  return client;
}

/** Kills the service and starts it again; the address of the wire stays. */
async function restart(): Promise<void> {
  await service.kill();
  wire.cut();
  await service.start();
}

const inLedger = (name: string) => readFile(join(service.workspace, name), "utf8");

/** Returns the first permission request of a session, which need not exist yet. */
async function nextAsk(sessionId: string, pattern?: string): Promise<PermissionRequest> {
  for await (const ask of clientOf("approver").asks())
    if (ask.sessionId === sessionId && (pattern === undefined || ask.patterns.includes(pattern))) return ask;
  throw new Error("the stream ended");
}

test("a call that waits survives kill -9 of the service, and its answer starts it once", async () => {
  const { call } = clientOf("caller");
  const command = "echo ran | tee -a ledger-call";
  const called = call("bash", { command }, { sessionId: "ses_call", callId: "c1" });
  await nextAsk("ses_call");
  await restart();
  const { reply } = clientOf("approver");
  await reply(await nextAsk("ses_call"), "once", { wholeCall: true });
  expect(await called).toMatchObject({ output: "ran\n" });
  // The same ids attach, as from a program that was started again.
  expect(await call("bash", { command }, { sessionId: "ses_call", callId: "c1" })).toMatchObject({ output: "ran\n" });
  expect(await inLedger("ledger-call")).toBe("ran\n");
});

test("a refused call throws why it failed, and that it had no effects", async () => {
  const called = clientOf("caller").call("bash", { command: "echo no" }, { sessionId: "ses_refused" });
  const refused = called.catch((error: unknown) => error);
  await clientOf("approver").reply(await nextAsk("ses_refused"), "reject", { message: "use make" });
  const error = await refused;
  expect(error).toBeInstanceOf(CallFailed);
  expect(error).toMatchObject({
    message: expect.stringMatching(/^bash \(call_\w+\) ended with REJECTED, effects NONE: .*use make/s),
    reason: ToolErrorReason.REJECTED,
    effects: ToolEffects.NONE,
  });
});

test("a stream yields each event once, across kill -9 of the service", async () => {
  const seen: string[] = [];
  for await (const { seq, event } of clientOf("caller").stream(
    "bash",
    { command: "echo hi" },
    { sessionId: "ses_stream" },
  )) {
    seen.push(`${seq} ${event.case === "part" ? event.value.state.case : event.case}`);
    if (event.case !== "permissionAsked") continue;
    await restart();
    await clientOf("approver").reply(event.value, "once", { wholeCall: true });
  }
  expect(seen).toEqual([
    "1 pending",
    "2 permissionAsked",
    "3 permissionSettled",
    "4 running",
    "5 output",
    "6 completed",
  ]);
});

test("asks come once each, also if the stream is opened again, and new ones follow", async () => {
  const { call } = clientOf("caller");
  const leave = new AbortController();
  const calls = ["a", "b"].map((name) =>
    call("bash", { command: `echo ${name}` }, { sessionId: "ses_asks", signal: leave.signal }).catch(() => undefined),
  );
  const seen: string[] = [];
  await Promise.all(["echo a", "echo b"].map((command) => nextAsk("ses_asks", command)));
  for await (const { patterns } of clientOf("approver").asks({ sessionId: "ses_asks" })) {
    seen.push(...patterns);
    if (seen.length === 2) {
      await restart();
      calls.push(
        call("bash", { command: "echo c" }, { sessionId: "ses_asks", signal: leave.signal }).catch(() => undefined),
      );
    }
    if (seen.length === 3) break;
  }
  leave.abort();
  await Promise.all(calls);
  expect(seen.toSorted()).toEqual(["echo a", "echo b", "echo c"]);
});

test("a service that was never reached is reported at once", async () => {
  const { call, close } = connect({ url: "http://127.0.0.1:9", token: "none" });
  await expect(call("echo", { text: "hi" })).rejects.toMatchObject({
    message: expect.stringMatching(/no service answers at .*ECONNREFUSED.*toolgate serve/),
  });
  close();
});
