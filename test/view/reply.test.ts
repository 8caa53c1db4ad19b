import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { retryReply } from "../../src/view/reply.ts";

/** Sends with these failures, one for each attempt; returns the pauses that were made. */
async function send(...failures: readonly (Code | undefined)[]) {
  const pauses: number[] = [];
  const left = [...failures];
  const sent = retryReply(
    async () => {
      const code = left.shift();
      if (code !== undefined) throw new ConnectError("failed", code);
    },
    async (ms) => {
      pauses.push(ms);
    },
  );
  return { pauses, error: await sent.then(() => undefined, ConnectError.from) };
}

test.each([Code.Unavailable, Code.DeadlineExceeded, Code.Unknown])(
  "after code %i the reply is sent again",
  async (code) => {
    expect(await send(code)).toEqual({ pauses: [500], error: undefined });
  },
);

test("the fourth failure is the last", async () => {
  const { pauses, error } = await send(Code.Unavailable, Code.Unavailable, Code.Unavailable, Code.Unavailable);
  expect(pauses).toEqual([500, 1_000, 2_000]);
  expect(error?.code).toBe(Code.Unavailable);
});

test.each([Code.FailedPrecondition, Code.PermissionDenied, Code.NotFound])(
  "a refusal with code %i is final",
  async (code) => {
    const { pauses, error } = await send(code);
    expect(pauses).toEqual([]);
    expect(error?.code).toBe(code);
  },
);

test("an error without a code is sent again, as a browser reports a lost connection", async () => {
  let attempts = 0;
  await retryReply(
    async () => {
      attempts += 1;
      if (attempts === 1) throw new TypeError("Failed to fetch");
    },
    async () => undefined,
  );
  expect(attempts).toBe(2);
});
