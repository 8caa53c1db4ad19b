import { createHash } from "node:crypto";
import { create, type JsonObject } from "@bufbuild/protobuf";
import * as fc from "fast-check";
import { expect, test } from "vitest";
import { QuestionSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionRequestSchema, ViewFileUse } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createCallView } from "../../src/approval/permission-request.ts";
import { askLines } from "../../src/cli/view/ask-view.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { isRequestCut, viewLines, withWholeInput } from "../../src/view/view-lines.ts";

const plain = (_: unknown, text: string) => text;

/** A request that shows a call. */
function requestOf(input: JsonObject, call: Partial<Parameters<typeof createCallView>[0]> = {}) {
  const view = createCallView({ tool: "deploy", title: "Deploy", input, ...call });
  return create(PermissionRequestSchema, { id: "per_1", sessionId: "ses_1", permission: "deploy", view });
}

test("the lines of a view are its tool, its title, every value, the files that run and what is missing", () => {
  const file = {
    path: "run\n.sh",
    sha256: "ab",
    bytes: 90n,
    lines: 3,
    use: ViewFileUse.SCRIPT,
    changedSinceRead: true,
  };
  const request = requestOf(
    { env: "prod", image: "evil/miner", edits: [{ "a/b": "x\ny" }], none: "", flags: {} },
    { files: [file], missing: ["files that make runs", "the present text of a.txt: reading it needs approval too"] },
  );
  expect(viewLines(request).map(({ kind, name, text }) => [kind, name, text])).toEqual([
    ["tool", "tool", "deploy: Deploy"],
    ["input", "env", "prod"],
    ["input", "image", "evil/miner"],
    ["input", "edits/0/a~1b", "x\ny"],
    ["input", "none", '""'],
    ["input", "flags", "{}"],
    ["file", "runs", "run\\u{a}.sh, 3 lines, changed since the agent read it"],
    ["missing", "not shown", "files that make runs"],
    ["note", "not shown", "the present text of a.txt: reading it needs approval too"],
  ]);
});

test.each<[path: string, words: string]>([
  [".git/config", "git reads"],
  ["/etc/gitconfig", "git reads"],
  ["/root/.config/git/attributes", "git reads"],
  [".git/hooks/pre-push", "git may run"],
  [".husky/pre-push", "git may run"],
  ["env.sh", "runs first"],
])("%s is a file that %s", (path, words) => {
  const files = [{ path, sha256: "ab", bytes: 9n, lines: 1, use: ViewFileUse.STARTUP }];
  expect(viewLines(requestOf({}, { files })).find(({ kind }) => kind === "file")?.name).toBe(words);
});

test("a title that repeats a value is not drawn twice, and questions are left to their form", () => {
  expect(viewLines(requestOf({ command: "ls" }, { tool: "bash", title: "ls" }))).toMatchObject([
    { name: "tool", text: "bash" },
    { name: "command", text: "ls" },
  ]);
  const options = [{ label: "a", description: "", preview: "p" }];
  const asked = requestOf({ questions: [{ question: "Which?", options, run: "x" }], note: "n" }, { title: "" });
  const lines = viewLines({ ...asked, question: [create(QuestionSchema, { question: "Which?" })] });
  expect(lines.map(({ name }) => name)).toEqual(["tool", "questions/0/options/0/preview", "questions/0/run", "note"]);
});

/** JSON with the characters that a person would not see. */
const text = fc.string({
  unit: fc.oneof(fc.constantFrom("\n", "\t", "\u202e", "\u200b", "é", "\u{e0041}"), fc.string({ maxLength: 3 })),
});
const inputs = fc.dictionary(
  text,
  fc.oneof(text, fc.integer(), fc.boolean(), fc.constant(null), fc.array(text, { maxLength: 3 })),
);

test("the terminal prints exactly the lines of the view, in order", async () => {
  await fc.assert(
    fc.property(inputs, (input) => {
      const request = requestOf(input as JsonObject, { missing: ["something"] });
      const printed = askLines(request, plain, { now: 0 }).slice(1);
      const drawn = viewLines(request).flatMap(({ name, text }) => {
        const label = name.replace(/\s+/g, " ").trim();
        return text.split("\n").map((line, i) => [i === 0 ? label : "", line]);
      });
      expect(printed.map((line) => line.trimEnd())).toEqual(
        drawn.map(([label = "", line]) => {
          const shown = label.length < 9 ? label.padEnd(9) : `${label}  `;
          return `  ${shown}${line}`.trimEnd();
        }),
      );
    }),
    { numRuns: 100 },
  );
});

test("a request that is cut becomes whole by its input", async () => {
  const input = { content: "line\u202e\n".repeat(10_000), small: "s" };
  const cut = requestOf(input);
  expect(viewLines(cut).find(({ name }) => name === "content")?.cut).toContain(
    `SHA-256 ${createHash("sha256").update(input.content).digest("hex")}`,
  );
  const stored = cut.view && { ...cut, view: { ...cut.view, inputUrl: "toolgate-output:out_1" } };
  expect(stored && isRequestCut(stored)).toBe(true);
  const data = new TextEncoder().encode(canonicalJson(input));
  const tools = { readToolOutput: async () => ({ data, end: true }) as never };
  const whole = await withWholeInput({ tools }, stored ?? cut);
  expect(isRequestCut(whole)).toBe(false);
  expect(viewLines(whole)).toMatchObject([
    { name: "tool" },
    { name: "content", text: "line\\u{202e}\n".repeat(10_000), cut: "" },
    { name: "small", text: "s", cut: "" },
  ]);
});
