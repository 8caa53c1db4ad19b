import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { describe, expect, onTestFinished, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createWorkspaceRules } from "../../src/config/config.ts";

const { ALLOW, ASK, DENY } = PermissionAction;

function workspace() {
  const base = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-workspace-")));
  onTestFinished(() => rmSync(base, { recursive: true }));
  const root = join(base, "root");
  const file = join(root, ".opencode/config.toml");
  mkdirSync(dirname(file), { recursive: true });
  const rules = createWorkspaceRules({ home: base });
  return {
    base,
    root,
    file,
    async read(agent = "build", directory = root) {
      // In one turn of the event loop a file is checked once.
      await nextTurn();
      return rules({ root, directory }, agent);
    },
  };
}

test("a workspace without a policy file has no list", async () => {
  const { root, read, file } = workspace();
  expect(await read()).toEqual([]);
  rmSync(dirname(file), { recursive: true });
  writeFileSync(join(root, ".opencode"), "a file, not a directory");
  expect(await read()).toEqual([]);
});

test("more policy files above a directory than can be judged make everything ask", async () => {
  const { root, read } = workspace();
  let directory = root;
  for (let level = 0; level < 33; level++) {
    mkdirSync(join(directory, ".opencode"), { recursive: true });
    writeFileSync(join(directory, ".opencode/config.toml"), '[permission]\nread = "ask"');
    if (level === 31) expect(await read("build", directory)).toHaveLength(32);
    if (level === 32) break;
    directory = join(directory, "a");
  }
  expect(await read("build", directory)).toMatchObject([
    { rules: [], problem: expect.stringContaining("33 policy files") },
  ]);
});

test("a condition in a policy file that is not trusted makes everything ask", async () => {
  const { file, read } = workspace();
  writeFileSync(file, '[permission.edit]\n"*" = { action = "deny", when = "input.x == 1" }');
  expect(await read()).toMatchObject([{ problem: expect.stringContaining("once it is trusted: toolgate trust") }]);
});

test("rules for all come before those for the agent", async () => {
  const { file, read } = workspace();
  writeFileSync(file, '[agent.plan.permission]\nread = "allow"\n[permission]\nread = "deny"\nedit = "ask"');
  const all = [
    { permission: "read", pattern: "*", action: DENY },
    { permission: "edit", pattern: "*", action: ASK },
  ];
  expect(await read()).toEqual([{ layer: PermissionLayer.WORKSPACE, source: ".opencode/config.toml", rules: all }]);
  expect((await read("plan"))[0]?.rules).toEqual([...all, { permission: "read", pattern: "*", action: ALLOW }]);
  expect((await read())[0]?.rules).toBe((await read())[0]?.rules);
});

test("a directory of a workspace also gets the policy files of all directories above it", async () => {
  const { root, file, read } = workspace();
  const inner = join(root, "a/b");
  mkdirSync(join(inner, ".opencode"), { recursive: true });
  writeFileSync(file, '[permission]\nread = "ask"');
  writeFileSync(join(inner, ".opencode/config.toml"), '[permission]\nread = "deny"');
  expect((await read("build", inner)).map(({ source }) => source)).toEqual([
    ".opencode/config.toml",
    "a/b/.opencode/config.toml",
  ]);
  expect(await read("build", join(root, "a"))).toHaveLength(1);
});

test("every change is detected, also one that leaves size and time unchanged", async () => {
  const { file, read } = workspace();
  const actionNow = async () => (await read())[0]?.rules[0]?.action;
  writeFileSync(file, '[permission]\nread = "deny"');
  utimesSync(file, 1, 1);
  expect(await actionNow()).toBe(DENY);
  writeFileSync(file, '[permission]\nread = "ask" ');
  utimesSync(file, 1, 1);
  expect(await actionNow()).toBe(ASK);
  rmSync(file);
  expect(await read()).toEqual([]);
});

describe("an invalid file is a problem, whose text does not quote the file", () => {
  test.each([
    [
      '[permission]\nread = "denied"',
      /^\.opencode\/config\.toml cannot be used; correct: line 2: permission\.read: must be/,
    ],
    ["[permision]\nread = 1", /line 1: top level: unknown key "permision", the nearest known one is "permission"$/],
    ['listen = "0.0.0.0:1"', /unknown key "listen"/],
    ['secret = "s3cret', /^\.opencode\/config\.toml, line 1, column \d+: (?!.*s3cret)/],
    [`# ${"x".repeat(65_536)}`, /has 65538 bytes, over the limit of 65536$/],
    [`a = ${"[".repeat(30_000)}`, /^\.opencode\/config\.toml/],
  ])("%j", async (text, problem) => {
    const { file, read } = workspace();
    writeFileSync(file, text);
    expect(await read()).toEqual([expect.objectContaining({ rules: [], problem: expect.stringMatching(problem) })]);
    writeFileSync(file, '[permission]\nread = "deny"');
    expect((await read())[0]?.problem).toBeUndefined();
  });

  test("a file that is not inside this workspace", async () => {
    const { base, root, file, read } = workspace();
    const problem = async () => (await read())[0]?.problem;
    mkdirSync(file);
    expect(await problem()).toMatch(/it is not a regular file|EISDIR/);
    rmSync(file, { recursive: true });
    execFileSync("mkfifo", [file]);
    expect(await problem()).toContain("it is not a regular file");
    rmSync(file);
    writeFileSync(join(base, "outside.toml"), "");
    symlinkSync(join(base, "outside.toml"), file);
    expect(await problem()).toContain("it is a link that leads out of the workspace");
    rmSync(file);
    writeFileSync(join(root, "inside.toml"), '[permission]\nread = "deny"');
    symlinkSync(join(root, "inside.toml"), file);
    expect(await problem()).toBeUndefined();
    expect((await read())[0]?.rules).toHaveLength(1);
    rmSync(join(root, "inside.toml"));
    expect(await read()).toEqual([]);
  });
});
