import { expect, test } from "vitest";
import { nextPageToken, pageAfter, pageBefore } from "../../src/edge/api/paging.ts";
import type { EdgeContext } from "../../src/edge/api/rpc.ts";

// Only the member that paging uses.
const context = { limits: { defaultPageSize: 100 } } as EdgeContext;

test("a page has the requested size, or the default one", () => {
  expect(pageAfter({ pageSize: 7, pageToken: "" }, context)).toEqual({ limit: 7 });
  expect(pageBefore({ pageSize: 0, pageToken: "" }, context)).toEqual({ limit: 100 });
});

test("a token continues after or before the last entry", () => {
  expect(pageAfter({ pageSize: 0, pageToken: "c9" }, context)).toEqual({ limit: 100, after: "c9" });
  expect(pageBefore({ pageSize: 0, pageToken: "c9" }, context)).toEqual({ limit: 100, before: "c9" });
});

test("a full page has a next one, a partial page has none", () => {
  expect(nextPageToken(["a", "b"], { limit: 2 })).toBe("b");
  expect(nextPageToken(["a"], { limit: 2 })).toBe("");
  expect(nextPageToken([], { limit: 2 })).toBe("");
});
