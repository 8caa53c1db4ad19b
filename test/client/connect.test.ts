import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import type { JsonObject } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { connect } from "../../src/client/client.ts";
import { useService } from "../e2e/service.ts";

const service = useService();

function clientOf(url: string, who = "caller") {
  const client = connect({ url, token: `${who}-token-for-tests` });
  onTestFinished(client.close);
  return client;
}

/** Listens at an address, and drops each connection. */
async function startDropping(): Promise<string> {
  const server = createServer((socket) => socket.resetAndDestroy()).listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("a service that was never reached is reported: the first call fails after some tries", async () => {
  const { call } = clientOf(await startDropping());
  await expect(call("echo", { text: "hi" })).rejects.toThrow(/no service answers at http:.* start one with/);
});

test("a client that is closed ends its calls that wait, and its asks", async () => {
  const [caller, approver] = [clientOf(service.url), clientOf(service.url, "approver")];
  const ids = { sessionId: "ses_closed", callId: "c1" };
  const stream = approver.asks();
  const called = caller.call("bash", { command: "true" }, ids);
  called.catch(() => undefined);
  expect((await stream.next()).value?.sessionId).toBe(ids.sessionId);
  const ended = Promise.allSettled([called, stream.next()]);
  caller.close();
  approver.close();
  const reason = expect.objectContaining({ message: "this client was closed: connect again" });
  expect(await ended).toEqual([
    { status: "rejected", reason },
    { status: "rejected", reason },
  ]);
});

test("an integer beyond 2^53 is refused with its field, and one below is sent", async () => {
  const { call } = clientOf(service.url);
  for (const rounded of [2 ** 53, -(2 ** 60), 2n ** 60n])
    await expect(call("echo", { order: { ids: [1, rounded] } } as unknown as JsonObject)).rejects.toThrow(
      "the input of echo.order.ids[1] is ",
    );
  for (const text of [2 ** 53 - 1, 1e300, 0.1])
    await expect(call("bash", { command: text })).rejects.toThrow("INVALID_INPUT");
});
