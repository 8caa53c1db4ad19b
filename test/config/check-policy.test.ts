import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { declaredTools } from "../../src/compose/built-in-tools.ts";
import { checkConfig } from "../../src/config/check-config.ts";
import { startService } from "../e2e/service.ts";
import { main } from "../main.ts";

function write(text: string) {
  const home = mkdtempSync(join(tmpdir(), "toolgate-check-"));
  onTestFinished(() => rmSync(home, { recursive: true }));
  const file = join(home, "toolgate.toml");
  writeFileSync(file, text);
  return { home, file };
}

async function findings(text: string) {
  const { home, file } = write(text);
  const checked = await checkConfig(file, { env: {}, home, directory: home }, await declaredTools());
  return checked.findings.map(({ severity, line, message }) => `${line} ${severity} ${message}`);
}

describe("a test of a policy", () => {
  const rules =
    '[permission.bash]\n"*" = "ask"\n"git *" = "allow"\n"git push *" = "deny"\n[permission.edit]\n"~/x/*" = "allow"';
  const run = (lines: string) => findings(`${rules}\n[[permission_test]]\n${lines}`);

  test.each([
    ["bash", "git log", "allow"],
    ["bash", "git push -f", "deny"],
    ["bash", "git log $(id)", "ask"],
    ["bash", "cat /etc/passwd", "ask"],
    ["read", "src/a.ts", "allow"],
    ["read", "deploy/prod.env", "ask"],
    ["edit", "/somewhere/x", "ask"],
    ["edit", "~/x/y", "allow"],
    ["edit", "toolgate.toml", "deny"],
    ["task", "x", "ask"],
  ])("passes: %s %j is %s", async (permission, pattern, expected) => {
    expect(await run(`permission = "${permission}"\npattern = "${pattern}"\nexpect = "${expected}"`)).toEqual([]);
  });

  test("that fails is an error with its line, the expected action and the deciding rule", async () => {
    expect(await run('permission = "bash"\npattern = "git push"\nexpect = "allow"')).toEqual([
      '7 error permission test: bash "git push" for agent build: expected allow, but it is deny: config rule 2 (bash "git push *" deny), on line 4',
    ]);
    expect(await run('permission = "read"\npattern = "a"\nexpect = "deny"\nagent = "plam"')).toEqual([
      '7 error permission test: read "a" for agent plam: unknown agent, the nearest known one is "plan"',
    ]);
  });

  test("is judged for its agent, built in or not", async () => {
    const agent = '[agent.careful.permission]\nread = "deny"\n[[permission_test]]';
    const careful = 'permission = "read"\npattern = "a.ts"\nexpect = "deny"\nagent = "careful"';
    expect(await findings(`${agent}\n${careful}`)).toEqual([]);
    expect(await run('permission = "edit"\npattern = "a.ts"\nexpect = "deny"\nagent = "plan"')).toEqual([]);
  });
});

test("an unknown permission is reported with the nearest known one, or with the permission of the tool of that name", async () => {
  expect(
    await findings(
      '[permission]\nbahs = "deny"\n"mcp_*" = "ask"\nmcp_x = "ask"\n[agent.a.permission]\nwrite = "deny"\n"claude:Monitor" = "deny"',
    ),
  ).toEqual([
    '2 warning unknown permission "bahs": the nearest known one is "bash"; those of tool files, MCP servers and workers are not known here',
    expect.stringMatching(/^4 warning unknown permission "mcp_x"/),
    '6 warning unknown permission "write": the tool of that name asks for "edit"',
  ]);
});

test("a condition on the input that no asking tool has is an error, and an allow by risk alone a warning", async () => {
  const rule = (when: string) => `"x*" = { action = "allow", when = ${JSON.stringify(when)} }`;
  expect(await findings(`[permission.edit]\n${rule("size(input.content) <= 9 && tool == 'write'")}`)).toEqual([]);
  expect(await findings(`[permission.bash]\n${rule("risk.only([])")}`)).toEqual([
    '2 warning bash "x*" allows by risk alone, and a risk that is not found proves nothing; write contained && … as well',
  ]);
  expect(await findings(`[permission.edit]\n${rule("input.contents == 'a'")}`)).toEqual([
    expect.stringMatching(
      /^2 error the condition of edit "x\*" does not fit the input of \w+: it has no input\.contents; /,
    ),
  ]);
  expect(await findings(`[permission.bash]\n${rule("input.command <= 3")}`)).toEqual([
    '2 error the condition of bash "x*" does not fit the input of bash: input.command is string, and is compared as number; correct it, or name the tool\'s field',
  ]);
  // The fields of tools that register later are not known yet.
  expect(await findings(`[permission.transfer]\n${rule("input.amount <= 100")}`)).toEqual([
    expect.stringContaining('2 warning unknown permission "transfer"'),
  ]);
});

test("a test of a policy gives the tool, the input and the containment, and what it leaves out is unknown", async () => {
  const rules =
    '[permission]\n"claude:pay" = { "*" = { action = "allow", when = "input.amount <= 100 && tool == \'claude:pay\'" }, "x*" = { action = "deny", when = "has(input.note)" } }';
  const run = (pattern: string, expected: string, more: string) =>
    findings(
      `${rules}\n[[permission_test]]\npermission = "claude:pay"\npattern = "${pattern}"\nexpect = "${expected}"\n${more}`,
    );
  const tool = 'tool = "claude:pay"';
  expect(await run("pay", "allow", `${tool}\ninput = { amount = 100 }`)).toEqual([]);
  expect(await run("pay", "ask", `${tool}\ninput = { amount = 100.5 }`)).toEqual([]);
  expect(await run("pay", "ask", tool)).toEqual([]);
  expect(await run("xy", "deny", tool)).toEqual([]);
  expect(await run("xy", "allow", `${tool}\ninput = { amount = 1 }`)).toEqual([]);
  expect(await run("pay", "allow", "input = { amount = 1 }")).toEqual([
    expect.stringContaining("does not count, since tool is unknown here; input.amount is 1: ask"),
  ]);
});

test("a rule that never decides is reported with the rule that always wins", async () => {
  expect(
    await findings('[permission.bash]\n"git push *" = "deny"\n"ls *" = "ask"\n"git *" = "allow"\n"l*" = "allow"'),
  ).toEqual([
    '2 warning the rule bash "git push *" never decides: the later rule bash "git *" on line 4 matches everything that it matches, and the last match wins; move it down, or remove it',
    expect.stringContaining('3 warning the rule bash "ls *" never decides: the later rule bash "l*" on line 5 '),
  ]);
});

describe("toolgate check-config", () => {
  const check = (file: string, home: string, ...more: string[]) =>
    main(["check-config", file, ...more], { HOME: home });

  test("prints findings by file and line, and creates nothing", async () => {
    const { home, file } = write(
      '[permission]\nbahs = "deny"\n[[permission_test]]\npermission = "bash"\npattern = "x"\nexpect = "deny"',
    );
    const failed = await check(file, home);
    expect(failed.stdout.split("\n")).toEqual([
      `${file}:2: warning: unknown permission "bahs": the nearest known one is "bash"; those of tool files, MCP servers and workers are not known here`,
      `${file}:3: error: permission test: bash "x" for agent build: expected deny, but it is ask: no rule matches: ask`,
      "",
    ]);
    expect(failed.stderr).toMatch(/a server does not start with 1 error\n.*next: correct the rules or the tests/);
    expect(failed.code).toBe(1);
    expect(readdirSync(home)).toEqual(["toolgate.toml"]);
  });

  test("exits with 0 if there are only warnings, and prints the number of rules and tests", async () => {
    const { home, file } = write('[permission]\nbahs = "deny"');
    const good = await check(file, home);
    expect(good).toMatchObject({
      code: 0,
      stderr: expect.stringContaining("is good: 1 rule, 0 tests passed, 1 warning"),
    });
    expect(JSON.parse((await check(file, home, "--json")).stdout)).toMatchObject({
      file,
      line: 2,
      severity: "warning",
    });
  });

  test("checks the policy file of a workspace by its own schema", async () => {
    const { home } = write("");
    const file = join(home, ".opencode/config.toml");
    mkdirSync(join(home, ".opencode"));
    writeFileSync(file, '[permission]\nbahs = "deny"');
    expect((await check(file, home)).stdout).toContain(`${file}:2: warning: unknown permission "bahs"`);
    writeFileSync(file, 'listen = "127.0.0.1:1"');
    expect(await check(file, home)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('line 1: top level: unknown key "listen"'),
    });
  });

  test("names twenty problems of a policy file of a workspace, with their lines, whatever its values are", async () => {
    const { home } = write("");
    const file = join(home, ".opencode/config.toml");
    mkdirSync(join(home, ".opencode"));
    const value = `[agent.a]\ndescription = """${"\n".repeat(65_000)}"""`;
    writeFileSync(file, `[agent.b]\nx = 1\n${value}`);
    expect((await check(file, home)).stderr).toContain('line 2: agent.b: unknown key "x"');
    writeFileSync(file, Array.from({ length: 4_000 }, (_, i) => `[agent.a${i}]\nx = 1\n`).join(""));
    const { stderr } = await check(file, home);
    expect(stderr.match(/unknown key "x"/g)).toHaveLength(20);
    expect(stderr).toContain('line 40: agent.a19: unknown key "x"');
    expect(stderr).toContain("… and 3980 more");
  });

  test("exits with 1 for settings that cannot be read, and for a file that does not exist", async () => {
    const { home, file } = write('[permission]\nbash = "alow"');
    expect(await check(file, home)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("line 2: permission.bash: must be"),
    });
    expect(await check(join(home, "none"), home)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("does not exist; create it"),
    });
  });

  test("a user without the file that is read by default is as good as a start without it", async () => {
    const { home } = write("");
    expect(await main(["check-config"], { HOME: home })).toMatchObject({
      code: 0,
      stderr: expect.stringContaining("a service starts without it"),
    });
  });
});

test("a server does not start with a test that fails", async () => {
  const settings = '[[permission_test]]\npermission = "bash"\npattern = "rm x"\nexpect = "deny"\n';
  await expect(startService({ settings })).rejects.toThrow(
    /toolgate\.toml:1 permission test: bash "rm x" for agent build: expected deny, but it is ask.*\n.*check-config/,
  );
});
