import { expect, test } from "vitest";
import { codeMs, createSignInCodes } from "../../src/people/credentials.ts";

const rights = { roles: ["approver"] as const, agents: ["*"], workspaces: ["*"], endsAt: Number.POSITIVE_INFINITY };

function codesAt(start: number) {
  let time = start;
  return {
    codes: createSignInCodes(() => time),
    pass(ms: number) {
      time += ms;
    },
  };
}

test("a code gives its rights once", () => {
  const { codes } = codesAt(1_000);
  const { code } = codes.create(rights);
  expect(codes.take(code)).toEqual(rights);
  expect(codes.take(code)).toBeUndefined();
});

test("a code is valid until 10 minutes have passed", () => {
  const { codes, pass } = codesAt(1_000);
  const { code: first, expires } = codes.create(rights);
  const { code: second } = codes.create(rights);
  expect(expires).toBe(1_000 + 600_000);
  pass(codeMs - 1);
  expect(codes.take(first)).toEqual(rights);
  pass(1);
  expect(codes.take(second)).toBeUndefined();
});

test("case, dashes and spaces of a code do not count", () => {
  const { codes } = codesAt(0);
  const { code } = codes.create(rights);
  expect(code).toMatch(/^[0-9a-hjkmnp-tv-z]{4}(-[0-9a-hjkmnp-tv-z]{4}){3}$/);
  expect(codes.take(` ${code.toUpperCase().replaceAll("-", " ")} `)).toEqual(rights);
});

test("at most 100 codes are in memory: a new one replaces the oldest", () => {
  const { codes } = codesAt(0);
  const { code: oldest } = codes.create(rights);
  const others = Array.from({ length: 100 }, () => codes.create(rights).code);
  expect(codes.take(oldest)).toBeUndefined();
  expect(codes.take(others[0] ?? "")).toEqual(rights);
});
