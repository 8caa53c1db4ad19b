import type { IncomingMessage, ServerResponse } from "node:http";
import { expect, test } from "vitest";
import { dispatch, type Mount } from "../../src/edge/http/mounts.ts";

const mount = (path: string, methods?: readonly string[]): Mount => ({
  path,
  ...(methods && { methods }),
  handle: (_request, response) => response.end(path),
});
const mounts = [mount("/"), mount("/page", ["GET"]), mount("/a.b.Service/"), mount("/a.b.Service/own")];

/** Returns the mount that serves a request, or the status of the refusal. */
function serve(method: string, url: string): unknown {
  let served: unknown;
  const handler = dispatch(mounts, (_error, _request, _response, httpStatus) => {
    served = httpStatus;
  });
  const response = {
    end(body: string) {
      served = body;
    },
  };
  // Only the members that a dispatch uses.
  handler({ method, url } as IncomingMessage, response as unknown as ServerResponse);
  return served;
}

test.each([
  ["GET", "/", "/"],
  ["GET", "/?x=1", "/"],
  ["GET", "/page?x=/a.b.Service/", "/page"],
  ["POST", "/page", 404],
  ["POST", "/a.b.Service/Call", "/a.b.Service/"],
  ["POST", "/a.b.Service/own", "/a.b.Service/own"],
  ["POST", "/a.b.Service", 404],
  ["GET", "/other", 404],
  ["GET", "//", 404],
])("%s %s is served by %s", (method, url, served) => {
  expect(serve(method, url)).toBe(served);
});
