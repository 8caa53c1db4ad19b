import { getEventListeners } from "node:events";
import { expect, test } from "vitest";
import { linkedSignal } from "../../src/edge/rpc/connect-router.ts";

test("a request ends with its credential, for the reason of the credential", () => {
  const [request, credential] = [new AbortController(), new AbortController()];
  const signal = linkedSignal(request.signal, credential.signal);
  credential.abort("revoked");
  request.abort("over");
  expect(signal.reason).toBe("revoked");
  expect(linkedSignal(new AbortController().signal, credential.signal).reason).toBe("revoked");
});

test("a credential holds nothing of a request that is over", () => {
  const [request, credential] = [new AbortController(), new AbortController()];
  const signal = linkedSignal(request.signal, credential.signal);
  expect(getEventListeners(credential.signal, "abort")).toHaveLength(1);
  request.abort("over");
  expect(getEventListeners(credential.signal, "abort")).toHaveLength(0);
  expect(signal.reason).toBe("over");
});
