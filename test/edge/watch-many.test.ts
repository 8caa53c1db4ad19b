import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { expect, test } from "vitest";
import { ErrorInfoSchema } from "../../gen/google/rpc/error_details_pb.ts";
import { ToolService, type WatchManyResponse } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Logger } from "../../src/core/logger.ts";
import { createFailures } from "../../src/edge/api/failures.ts";
import type { EdgeContext } from "../../src/edge/api/rpc.ts";
import { createWatchMany } from "../../src/edge/api/streams.ts";
import { bearer } from "../e2e/clients.ts";
import { startServer } from "./server.ts";

const silent: Logger = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

/** Starts a server whose watches send numbers: `quiet` sends one, `busy` never stops, `broken` fails with an unexpected error. */
async function startWatches() {
  const open = new Set<string>();
  async function* watchSession({ sessionId }: { sessionId: string }, { signal }: Pick<EdgeContext, "signal">) {
    open.add(sessionId);
    try {
      yield { lastSeq: 1n };
      if (sessionId === "broken") throw new Error("a secret");
      for (let lastSeq = 2n; sessionId === "busy"; lastSeq += 1n) yield { lastSeq, storeId: "x".repeat(10_000) };
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      signal.throwIfAborted();
    } finally {
      open.delete(sessionId);
    }
  }
  const failures = createFailures({ log: silent, newId: () => "r1", fromLibrary: () => undefined });
  const watchPermissions = (_: unknown, context: EdgeContext) => watchSession({ sessionId: "asks" }, context);
  const server = await startServer({ watchMany: createWatchMany({ watchSession, watchPermissions }, failures) });
  const interceptors = [bearer("watcher-token")];
  const client = createClient(ToolService, createGrpcTransport({ baseUrl: server.url, interceptors }));
  const watch = (sessionIds: readonly string[], signal?: AbortSignal) => {
    const watches = sessionIds.map((sessionId) => ({
      key: sessionId,
      watch: { case: "session" as const, value: { sessionId } },
    }));
    const asks = { key: "asks", watch: { case: "permissions" as const, value: {} } };
    return client.watchMany({ watches: [...watches, asks] }, { ...(signal && { signal }) });
  };
  return { open, server, watch };
}

async function until(stream: AsyncIterable<WatchManyResponse>, fits: (message: WatchManyResponse) => boolean) {
  for await (const message of stream) if (fits(message)) return message;
  throw new Error("the stream ended without a fitting message");
}

test("a client that leaves ends every watch, whether it waits or has unread messages", async () => {
  const { open, watch } = await startWatches();
  const leave = new AbortController();
  const messages = watch(["quiet", "busy"], leave.signal)[Symbol.asyncIterator]();
  await messages.next();
  await expect.poll(() => open).toEqual(new Set(["quiet", "busy", "asks"]));
  leave.abort();
  await expect(messages.next()).rejects.toThrow();
  await expect.poll(() => open).toEqual(new Set());
});

test("a watch that always has messages does not delay the others", async () => {
  const { watch } = await startWatches();
  const leave = new AbortController();
  const seen = new Set<string>();
  await until(watch(["busy", "quiet"], leave.signal), ({ key }) => seen.add(key).size === 3);
  leave.abort();
});

test("an unexpected error ends only its watch and hides its text", async () => {
  const { open, watch } = await startWatches();
  const leave = new AbortController();
  const { key, frame } = await until(watch(["broken", "busy"], leave.signal), ({ frame }) => frame.case === "end");
  expect(key).toBe("broken");
  expect(frame.value).toMatchObject({ code: Code.Internal, message: "internal error, request id r1" });
  leave.abort();
  await expect.poll(() => open).toEqual(new Set());
});

test("a drain is the error of the stream, not the end of a watch", async () => {
  const { server, watch } = await startWatches();
  const messages = watch(["quiet"])[Symbol.asyncIterator]();
  await messages.next();
  await messages.next();
  const next = messages.next();
  void server.close(4_000);
  const error = ConnectError.from(await next.catch((cause: unknown) => cause));
  expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: "DRAINING" }]);
});
