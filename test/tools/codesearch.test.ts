import { linkSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import type { RequestListener } from "node:http";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { CodeSearchName, RemoteSearch } from "../../src/core/search-providers.ts";
import { callTool, judgeBy, openTestWorkspace, planCall, type TestWorkspace } from "../../src/testing.ts";
import { InvalidInput } from "../../src/tool/errors.ts";
import { createCodeSearch } from "../../src/tools/codesearch.ts";
import { answerEvents, searchKey, startProvider, unfenced } from "./search-provider.ts";

let site: TestWorkspace;
beforeEach(async () => {
  site = await openTestWorkspace();
});
afterEach(() => site.remove());

const configured = (provider: CodeSearchName, url: string, more: Partial<RemoteSearch> = {}) =>
  createCodeSearch({
    codesearch: { isUrlConfigured: true, key: () => searchKey, timeoutMs: 30_000, ...more, provider, url },
  });

type Input = Record<string, string | number | boolean | string[]>;

async function search(provider: CodeSearchName, answer: RequestListener, input: Input = {}, more = {}) {
  const { url, seen } = await startProvider(answer);
  const result = await callTool(site, configured(provider, url, more), { query: 'f("x")', ...input });
  return { ...result, seen };
}

/** A Sourcegraph stream with one match; without `done` it breaks off. */
const sourcegraph = (...rest: (readonly [string, unknown])[]) =>
  answerEvents(
    [
      ["progress", { done: false, matchCount: 0 }],
      [
        "matches",
        [
          {
            type: "content",
            repository: "github.com/acme/repo",
            path: "src/a.ts",
            lineMatches: [{ line: 'f("x");', lineNumber: 6, offsetAndLengths: [[0, 6]] }],
          },
          { type: "repo", repository: "github.com/acme/other" },
        ],
      ],
      ...rest,
    ],
    { ends: rest.length === 0 },
  );

describe("each provider gets a literal query and yields repository, path and lines:", () => {
  const filters = { language: ["TypeScript", "C++"], repo: "acme/repo", path: "src/" };

  test("sourcegraph, from a stream that stays open after it is done", async () => {
    const { output, seen } = await search("sourcegraph", sourcegraph(["done", {}]), filters);
    expect(unfenced(output)).toContain(
      '<untrusted source="result 1 of 1">\ngithub.com/acme/repo src/a.ts\n  Line 7: f("x");\n</untrusted>',
    );
    const [got] = seen;
    expect(got?.headers.authorization).toBe(`token ${searchKey}`);
    expect(got?.url.pathname).toBe("/.api/search/stream");
    expect(got?.url.searchParams.get("q")).toBe(
      String.raw`patternType:literal type:file count:50 lang:"TypeScript|C\\+\\+" repo:"acme/repo" file:"src/" content:"f(\"x\")"`,
    );
  });

  test("sourcegraph, with chunks of several lines", async () => {
    const chunkMatches = [{ content: "a\nb", contentStart: { offset: 0, line: 4, column: 0 } }];
    const match = { type: "content", repository: "r", path: "p", chunkMatches };
    const { output } = await search(
      "sourcegraph",
      answerEvents([
        ["matches", [match]],
        ["done", {}],
      ]),
    );
    expect(output).toContain("\nr p\n  Line 5: a\n  Line 6: b\n");
  });

  test("as a regular expression if the call says so", async () => {
    const { seen } = await search("sourcegraph", sourcegraph(["done", {}]), { query: "f\\(.*\\)", useRegexp: true });
    expect(seen[0]?.url.searchParams.get("q")).toMatch(/^patternType:regexp .*content:"f\\\\\(/);
  });
});

test("a search asks for its query as written, and shows the provider's host", async () => {
  const tool = configured("sourcegraph", "http://127.0.0.1:9");
  const { plan } = await planCall(site, tool, { query: "  if (a)\n  b()", tokensNum: 1_000, language: "Go" });
  expect(plan.title).toBe("  if (a)");
  expect(plan.asks).toMatchObject([{ permission: "codesearch", patterns: ["  if (a)\n  b()"], always: ["*"] }]);
  expect((await plan.inspect?.())?.preview?.()).toMatchObject({ hosts: ["127.0.0.1:9"] });
  await expect(planCall(site, tool, { query: "q", tokensNum: 999 })).rejects.toThrow(InvalidInput);
});

test("tokensNum limits how much comes back", async () => {
  const lineMatches = Array.from({ length: 900 }, (_, lineNumber) => ({ line: "x".repeat(80), lineNumber }));
  const file = { type: "content", repository: "r", path: "a", lineMatches };
  const answer = answerEvents([
    ["matches", [file, file, file]],
    ["done", {}],
  ]);
  const { output, metadata } = await search("sourcegraph", answer, { tokensNum: 1_000 });
  expect(output?.length).toBeLessThan(5_000);
  expect(metadata).toMatchObject({ results: 3, isCut: true });
});

describe("an error names its cause and the next step, without the key:", () => {
  test.each<[string, CodeSearchName, RequestListener, string, object?]>([
    ["429", "sourcegraph", (_, response) => response.writeHead(429).end(), "Code search rate limited (HTTP 429)."],
    [
      "401",
      "sourcegraph",
      (_, response) => response.writeHead(401).end(),
      "Code search authentication failed (HTTP 401)",
    ],
    [
      "418",
      "sourcegraph",
      (_, response) => response.writeHead(418).end(),
      "Code search request failed (HTTP 418). Try another",
    ],
    [
      "a bot check",
      "sourcegraph",
      (_, response) => response.end(`<html>${searchKey}`),
      "did not answer in the form of",
    ],
    ["a stream that breaks off", "sourcegraph", sourcegraph(), "did not answer in the form of sourcegraph"],
    ["an error event", "sourcegraph", sourcegraph(["error", { message: searchKey }]), "did not answer in the form of"],
    ["no answer", "sourcegraph", () => undefined, "Code search timed out", { timeoutMs: 200 }],
  ])("%s", async (_, provider, answer, text, more) => {
    const error: unknown = await search(provider, answer, {}, more).catch((error: unknown) => error);
    expect(error).toMatchObject({ name: "ToolFailure", message: expect.stringContaining(text) });
    expect(error instanceof Error && `${error.stack}${String(error.cause)}`).not.toContain(searchKey);
  });
});

test("no results are no failure", async () => {
  const { output } = await search("sourcegraph", answerEvents([["done", {}]]));
  expect(output).toBe("No code found. Please try a shorter piece of code, or fewer filters.");
});

describe("ripgrep over configured roots", () => {
  const local = (...roots: string[]) => createCodeSearch({ codesearch: { provider: "ripgrep", roots } });

  /** Writes files below the directory outside the workspace, and returns its path. */
  function files(named: Readonly<Record<string, string>>): string {
    for (const [name, text] of Object.entries(named)) {
      mkdirSync(dirname(join(site.outside, name)), { recursive: true });
      writeFileSync(join(site.outside, name), text);
    }
    return site.outside;
  }

  test("finds literal code outside the workspace, fenced, and asks only for the query", async () => {
    const root = files({ "repo/a.ts": "x\nf(1) // </untrusted>\n", "repo/b.py": "f(1)\n", "repo/c.ts": "ff1\n" });
    const { plan } = await planCall(site, local(root), { query: "f(1)" });
    expect(plan.asks).toMatchObject([{ permission: "codesearch", patterns: ["f(1)"] }]);
    expect((await plan.inspect?.())?.preview?.()).toMatchObject({ paths: [root] });
    const { output, metadata } = await callTool(site, local(root), { query: "f(1)" });
    expect(unfenced(output)).toContain(`${root}/repo/a.ts:\n  Line 2: f(1) // &lt;/untrusted>`);
    expect(output).not.toContain("c.ts");
    expect(metadata).toEqual({ provider: "ripgrep", results: 2, leftOut: 0, denied: 0, isCut: false });
  });

  test("filters by language, repository and path, and takes regular expressions", async () => {
    const root = files({ "one/a.ts": "f1", "one/b.py": "f2", "two/lib/a.ts": "f3", "two/b.cc": "f4" });
    const linesOf = async (input: Input) => {
      const { output = "" } = await callTool(site, local(root), { query: "f[0-9]", useRegexp: true, ...input });
      return [...output.matchAll(/Line 1: (f\d)/g)].map(([, name]) => name).toSorted();
    };
    expect(await linesOf({})).toEqual(["f1", "f2", "f3", "f4"]);
    expect(await linesOf({ useRegexp: false })).toEqual([]);
    expect(await linesOf({ language: ["TypeScript", "C++"] })).toEqual(["f1", "f3", "f4"]);
    expect(await linesOf({ language: "Python" })).toEqual(["f2"]);
    expect(await linesOf({ repo: "two" })).toEqual(["f3", "f4"]);
    expect(await linesOf({ path: "lib/" })).toEqual(["f3"]);
    await expect(linesOf({ language: "Nonsense" })).rejects.toThrow("unrecognized file type: nonsense");
  });

  test("leaves out and counts files that rules deny or ask about", async () => {
    const root = files({ "a.ts": "secret-1", ".env": "secret-2", "deep/x.key": "secret-3", id_ed25519: "secret-4" });
    linkSync(join(root, ".env"), join(root, "plain.ts"));
    site.judge = judgeBy({ read: { "*": "allow", "*.key": "deny" } });
    const before = await callTool(site, local(root), { query: "secret-" });
    expect(before.output).not.toMatch(/secret-3/);
    site.judge = judgeBy({ read: { "*.key": "deny" } });
    const { output, metadata } = await callTool(site, local(root), { query: "secret-" });
    expect(output).toContain("secret-1");
    expect(output).not.toMatch(/secret-[23]/);
    expect(metadata).toMatchObject({ leftOut: expect.any(Number) });
    expect(output).toMatch(/\(\d files are left out, because reading needs approval/);
    // Control: with rules that allow all of them they are found.
    site.judge = judgeBy({ read: "allow" });
    expect((await callTool(site, local(root), { query: "secret-3" })).metadata).toMatchObject({ results: 1 });
  });

  test("leaves out a root that rules for external_directory deny, and follows no link out of a root", async () => {
    const root = files({ "in/a.ts": "needle", "out/b.ts": "needle" });
    symlinkSync(join(root, "out/b.ts"), join(root, "in/link.ts"));
    symlinkSync(join(root, "out"), join(root, "in/linked"));
    const found = await callTool(site, local(join(root, "in")), { query: "needle" });
    expect(found.metadata).toMatchObject({ results: 1, denied: 0 });
    site.judge = judgeBy({ external_directory: { [`${root}/in/*`]: "deny" } });
    const { output, metadata } = await callTool(site, local(join(root, "in")), { query: "needle" });
    expect(metadata).toMatchObject({ results: 0, denied: 1 });
    expect(output).toContain("(1 of 1 directories left out, because rules deny them.)");
  });
});
