import type { IncomingMessage, ServerResponse } from "node:http";
import { expect, test } from "vitest";
import { dispatch, type Mount } from "../../src/edge/http/handler.ts";

const mount = (path: string, options: Omit<Mount, "path" | "handle"> = {}): Mount => ({
  ...options,
  path,
  handle: (_request, response) => response.end(`${path}${options.accept ?? ""}`),
});
const get = { methods: ["GET"] };
const mounts = [
  mount("/"),
  mount("/page", get),
  mount("/a.b.Service/"),
  mount("/a.b.Service/own"),
  mount("/both", get),
  mount("/both", { ...get, accept: "text/event-stream" }),
];

/** Returns the mount that serves a request, or the status of the refusal. */
function serve(method: string, url: string, accept: string): unknown {
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
  handler({ method, url, headers: { accept } } as IncomingMessage, response as unknown as ServerResponse);
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
  ["GET", "/both", "/both"],
  ["GET", "/both", "/bothtext/event-stream", "application/json, text/event-stream"],
  ["POST", "/both", 404, "text/event-stream"],
])("%s %s is served by %s", (method, url, served, accept = "*/*") => {
  expect(serve(method, url, accept)).toBe(served);
});

test.each([
  ["GET of /x", get, { methods: ["POST", "GET"] }],
  ["GET of /x", {}, get],
  ["every method of /x", {}, {}],
  ["every method of /x", { accept: "text/html" }, { accept: "text/html" }],
])("two mounts that serve %s are refused", (shared, first, second) => {
  const open = () => dispatch([mount("/x", first), mount("/x", second)], () => undefined);
  expect(open).toThrow(`two doors serve ${shared}`);
});

test("an error of a door refuses its request, and reaches no other", () => {
  const wrong = new Error("a bug");
  const refused: unknown[] = [];
  const handle = () => {
    throw wrong;
  };
  const handler = dispatch([{ path: "/", handle }], (error) => refused.push(error));
  handler({ method: "GET", url: "/", headers: {} } as IncomingMessage, {} as ServerResponse);
  expect(refused).toEqual([wrong]);
});
