import { create, type MessageInitShape } from "@bufbuild/protobuf";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { GrantMatchSchema, GrantScope } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { matchCovers } from "../../src/approval/grants.ts";
import { offersFor } from "../../src/approval/offers.ts";

const matching = (match: MessageInitShape<typeof GrantMatchSchema>["match"]) =>
  create(GrantMatchSchema, match && { match });
const prefix = (...words: string[]) => matching({ case: "prefix", value: { words, options: ["--oneline"] } });

describe("covers", () => {
  test("exact covers its own text and no other, whatever characters it contains", () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), (text, other) => {
        expect(matchCovers(matching({ case: "exact", value: text }), text)).toBe(true);
        expect(matchCovers(matching({ case: "exact", value: text }), other)).toBe(text === other);
      }),
    );
    expect(matchCovers(matching({ case: "exact", value: "*" }), "rm -rf x")).toBe(false);
  });

  test("prefix compares whole words of a simple command", () => {
    expect(matchCovers(prefix("git", "log"), "git  log --oneline")).toBe(true);
    expect(matchCovers(prefix("git", "log"), "git logs")).toBe(false);
    expect(matchCovers(prefix("git", "log"), "git")).toBe(false);
    expect(matchCovers(prefix("git", "log"), "git log; id")).toBe(false);
    expect(matchCovers(prefix(), "git log")).toBe(false);
  });

  test("wildcard covers the texts that a rule pattern matches", () => {
    expect(matchCovers(matching({ case: "wildcard", value: "a/*" }), "a/b")).toBe(true);
    expect(matchCovers(matching({ case: "wildcard", value: "a/*" }), "b")).toBe(false);
  });

  test("no match covers text with hidden characters", () => {
    const hiding = "echo a\u202eb";
    expect(matchCovers(matching({ case: "exact", value: hiding }), hiding)).toBe(false);
    expect(matchCovers(prefix("echo"), hiding)).toBe(false);
    expect(matchCovers(matching({ case: "wildcard", value: "*" }), hiding)).toBe(false);
  });

  test("an absent match covers nothing", () => {
    expect(matchCovers(undefined, "")).toBe(false);
    expect(matchCovers(matching(undefined), "")).toBe(false);
  });
});

describe("offersFor", () => {
  const bound = { agent: "build", workspace: "default", binding: "b1", wildcards: [] };
  const ask = { ...bound, permission: "bash", patterns: ["npm test --watch"] };

  test("offers the pattern, then commands with the same first words, each for the session tree, the agent and the workspace", () => {
    const offers = offersFor(ask);
    const begins = 'Allow every bash command that begins with the words "npm" "test" (with "--watch"; no risk)';
    expect(offers.map(({ id, scope, text }) => [id, scope, text])).toEqual([
      ["o1", GrantScope.SESSION, 'Allow bash "npm test --watch" in this session and its children'],
      ["o2", GrantScope.AGENT, 'Allow bash "npm test --watch" for agent build in workspace default, until revoked'],
      ["o3", GrantScope.PROJECT, 'Allow bash "npm test --watch" for every session in workspace default, until revoked'],
      ["o4", GrantScope.SESSION, `${begins} in this session and its children`],
      ["o5", GrantScope.AGENT, `${begins} for agent build in workspace default, until revoked`],
      ["o6", GrantScope.PROJECT, `${begins} for every session in workspace default, until revoked`],
    ]);
    const exact = { match: { case: "exact", value: "npm test --watch" } };
    const prefix = {
      match: { case: "prefix", value: { words: ["npm", "test"], riskKinds: [], options: ["--watch"] } },
    };
    expect(offers.map(({ match }) => match)).toMatchObject([exact, exact, exact, prefix, prefix, prefix]);
    for (const offer of offers) expect(offer).toMatchObject({ binding: "b1", expires: 0 });
  });

  test("offers the wildcards of the tool that cover the patterns", () => {
    const wildcards = ["https://example.com/*", "https://other.org/*"];
    const offers = offersFor({ ...bound, wildcards, permission: "webfetch", patterns: ["https://example.com/a"] });
    expect(offers.map(({ match }) => match?.match.case)).toEqual([
      ...Array(3).fill("exact"),
      ...Array(3).fill("wildcard"),
    ]);
    expect(offers[3]?.text).toBe(
      'Allow webfetch of everything that fits "https://example.com/*" (* is any text) in this session and its children',
    );
  });

  test("offers several patterns together, each as a separate grant, and prefixes only if all have one", () => {
    const offers = offersFor({ ...ask, patterns: ["cd web", "npm test"] });
    expect(offers[0]).toMatchObject({
      text: 'Allow bash "cd web" or "npm test" in this session and its children',
      match: { match: { case: "exact", value: "cd web" } },
      also: [{ match: { case: "exact", value: "npm test" } }],
    });
    expect(offers[3]?.text).toContain(
      'begins with the words "cd" (no options; no risk) or "npm" "test" (no options; no risk) in this session',
    );
    expect(offersFor({ ...ask, patterns: ["npm test", "sudo npm test"] })).toHaveLength(3);
  });

  test("a prefix names the risks of its command, and no prefix is offered where operands name what is deleted or sent", () => {
    const [, , , offer] = offersFor({ ...ask, patterns: ["git fetch origin main"] });
    expect(offer?.match?.match.value).toMatchObject({ riskKinds: [RiskKind.NETWORK], options: [] });
    expect(offer?.text).toContain(
      'begins with the words "git" "fetch" "origin" (no options; no risk but: uses the network)',
    );
    expect(offersFor({ ...ask, patterns: ["git push origin main"] })).toHaveLength(3);
    expect(offersFor({ ...ask, patterns: ["git clean -fd"] })).toHaveLength(3);
  });

  test("offers no prefix for permissions other than bash", () => {
    expect(offersFor({ ...bound, permission: "edit", patterns: ["notes.txt"] })).toHaveLength(3);
  });

  test.each<[string, string[]]>([
    ["no pattern", []],
    ["more patterns than an approver reads", Array.from({ length: 9 }, (_, i) => `make ${i}`)],
    ["patterns of which one cannot be shown", ["make", "a\u202eb"]],
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
    const [offer] = offersFor({ ...ask, patterns: ["git commit -m 'Übersicht 修正 🎉'"] });
    expect(offer?.match?.match.value).toBe("git commit -m 'Übersicht 修正 🎉'");
  });
});
