import { create, type MessageInitShape } from "@bufbuild/protobuf";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { GrantMatchSchema, GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { covers, offersFor } from "../../src/permission/grants.ts";

const matching = (match: MessageInitShape<typeof GrantMatchSchema>["match"]) =>
  create(GrantMatchSchema, match && { match });
const prefix = (...words: string[]) => matching({ case: "prefix", value: { words } });

describe("covers", () => {
  test("exact covers its own text and no other, whatever characters it holds", () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), (text, other) => {
        expect(covers(matching({ case: "exact", value: text }), text)).toBe(true);
        expect(covers(matching({ case: "exact", value: text }), other)).toBe(text === other);
      }),
    );
    expect(covers(matching({ case: "exact", value: "*" }), "rm -rf x")).toBe(false);
  });

  test("prefix compares whole words of a simple command", () => {
    expect(covers(prefix("git", "log"), "git  log --oneline")).toBe(true);
    expect(covers(prefix("git", "log"), "git logs")).toBe(false);
    expect(covers(prefix("git", "log"), "git")).toBe(false);
    expect(covers(prefix("git", "log"), "git log; id")).toBe(false);
    expect(covers(prefix(), "git log")).toBe(false);
  });

  test("wildcard covers what a rule pattern would match", () => {
    expect(covers(matching({ case: "wildcard", value: "a/*" }), "a/b")).toBe(true);
    expect(covers(matching({ case: "wildcard", value: "a/*" }), "b")).toBe(false);
  });

  test("no match covers nothing", () => {
    expect(covers(undefined, "")).toBe(false);
    expect(covers(matching(undefined), "")).toBe(false);
  });
});

describe("offersFor", () => {
  const ask = { permission: "bash", patterns: ["npm test"], agent: "build", workspace: "default", binding: "b1" };

  test("offers the one pattern for the session tree, the agent and the workspace, in this order and in words", () => {
    const offers = offersFor(ask);
    expect(offers.map(({ id, scope, text }) => [id, scope, text])).toEqual([
      ["o1", GrantScope.SESSION, 'Allow bash "npm test" in this session and its children'],
      ["o2", GrantScope.AGENT, 'Allow bash "npm test" for agent build in workspace default, until revoked'],
      ["o3", GrantScope.PROJECT, 'Allow bash "npm test" for every session in workspace default, until revoked'],
    ]);
    for (const offer of offers) {
      expect(offer).toMatchObject({
        match: { match: { case: "exact", value: "npm test" } },
        binding: "b1",
        expires: 0,
      });
    }
  });

  test.each<[string, string[]]>([
    ["no pattern", []],
    ["several patterns", ["a", "b"]],
    ["an empty pattern", [""]],
    ["over 4 KiB", ["é".repeat(2_049)]],
    ["a line end", ["a\nb"]],
    ["an escape character", ["a\u001b[2K"]],
    ["a bidi override", ["a\u202eb"]],
    ["a zero-width space", ["a\u200bb"]],
    ["a filler that is drawn as nothing", ["a\u3164b"]],
    ["a space that is none", ["a\u00a0b"]],
    ["half a character", ["a\ud800b"]],
  ])("offers nothing for %s", (_, patterns) => {
    expect(offersFor({ ...ask, patterns })).toEqual([]);
  });

  test("offers text in any script", () => {
    expect(offersFor({ ...ask, patterns: ["git commit -m 'Übersicht 修正 🎉'"] })).toHaveLength(3);
  });
});
