import { posix } from "node:path";
import { describe, expect, test } from "vitest";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { createPolicy, strictest } from "../../src/permission/policy.ts";
import { fromConfig, type RuleConfig } from "../../src/permission/rules.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const policy = createPolicy({ guard: { dataDirectory: "/var/lib/toolgate" }, home: "/home/u" });

function bash(line: string, rules: RuleConfig, session?: RuleConfig): PermissionAction {
  const layers = {
    wide: [{ layer: PermissionLayer.CONFIG, rules: fromConfig(rules, "/home/u") }],
    narrow: session ? [{ layer: PermissionLayer.SESSION, rules: fromConfig(session, "/home/u") }] : [],
  };
  return strictest(policy.judge({ permission: "bash", patterns: [line], cwd: "/srv/p" }, layers));
}

describe("a simple command", () => {
  test.each<[string, RuleConfig, PermissionAction]>([
    ["npm test", { bash: { "npm test": "allow" } }, ALLOW],
    ["git   status  -s ", { bash: { "git status *": "allow" } }, ALLOW],
    ["  git status", { bash: { "*": "deny", "git *": "allow" } }, ALLOW],
    ["npm test --prefix x", { bash: { "npm test": "allow" } }, ASK],
    ["/tmp/evil/git status", { bash: { "git *": "allow" } }, ASK],
    ["/bin/rm -rf x", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["/bin/rm -rf x", { bash: { "*": "allow", "rm *": "ask" } }, ASK],
    ["/usr/bin/git log", { bash: { "*": "ask", "/usr/bin/git *": "allow" } }, ALLOW],
    ["env A=1 /bin/rm -rf x", { bash: { "*": "allow", "rm *": "deny" } }, DENY],
    ["sudo -u bob rm x", { bash: { "sudo *": "allow", "rm *": "deny" } }, DENY],
    ["timeout 60 npm test", { bash: { "npm test *": "allow", "timeout *": "allow" } }, ALLOW],
    ["echo rm x", { bash: { "*": "allow", "rm *": "deny" } }, ALLOW],
  ])("%s", (line, rules, action) => {
    expect(bash(line, rules)).toBe(action);
  });
});

describe("an opaque command", () => {
  const lines = [
    "git status; id",
    "git status\nid",
    "git status && id",
    "git log $(id)",
    "git status > x",
    "git status ~",
    "git status\tx",
    "A=1 git status",
    "",
    "  ",
    `git log ${"a".repeat(8_192)}`,
    `env ${"A=1 ".repeat(64)}git`,
  ];

  test.each(lines)("is not allowed by a rule for a part: %j", (line) => {
    expect(
      bash(line, { bash: { "git *": "allow", "A=1 *": "allow", "env *": "allow", "": "allow", " *": "allow" } }),
    ).toBe(ASK);
  });

  test.each(lines)("is allowed by * where nothing narrower asks or denies: %j", (line) => {
    expect(bash(line, { bash: "allow" })).toBe(ALLOW);
    expect(bash(line, { bash: { "rm *": "deny", "*": "allow" } })).toBe(ASK);
    expect(bash(line, { bash: "allow" }, { bash: { "rm *": "ask" } })).toBe(ASK);
    expect(bash(line, { bash: "allow", "*": { "x *": "deny" } })).toBe(ASK);
  });

  test("is denied where a deny meets it", () => {
    expect(bash("rm -rf x; id", { bash: { "*": "allow", "rm *": "deny" } })).toBe(DENY);
    expect(bash("\n /bin/rm -rf x; id", { bash: { "*": "allow", "rm *": "deny" } })).toBe(DENY);
    expect(bash("git status; id", { bash: "deny" })).toBe(DENY);
  });

  test("is denied where a session denies all but a part", () => {
    expect(bash("git status; id", { bash: "allow" }, { bash: { "*": "deny", "git *": "allow" } })).toBe(DENY);
  });

  test("the reason names the rule that might be about a part of it", () => {
    const rules = fromConfig({ bash: { "rm *": "deny", "*": "allow" } }, "");
    const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules }], narrow: [] };
    expect(policy.judge({ permission: "bash", patterns: ["a; b"] }, layers)[0]?.reason).toBe(
      'a command line with shell syntax: config rule 0 (bash "rm *" deny) might be about a part of it: ask',
    );
  });
});

describe("expand", () => {
  const resolve = async (path: string, cwd: string) => {
    const absolute = posix.resolve(cwd, path);
    const external = absolute !== "/srv/p" && !absolute.startsWith("/srv/p/");
    return { absolute, external, isFolder: ["/", "/opt", "/srv"].includes(absolute) };
  };
  const expand = (line: string) => policy.expand({ permission: "bash", patterns: [line], cwd: "/srv/p/sub" }, resolve);

  test("adds the folders outside the workspace that a simple command names", async () => {
    const [outside, itself] = await expand("cp a/b ../c ../../x/y --out=/etc/cron.d/z ../../x/w ..");
    expect(outside).toEqual({
      permission: "external_directory",
      patterns: ["/srv/x/*", "/etc/cron.d/*"],
      paths: ["/srv/x", "/etc/cron.d"],
    });
    expect(itself).toEqual({
      permission: "bash",
      patterns: ["cp a/b ../c ../../x/y --out=/etc/cron.d/z ../../x/w .."],
      cwd: "/srv/p/sub",
    });
  });

  test("a word that is a folder stands for that folder, and the root is /*", async () => {
    expect((await expand("ls /opt /tmp/.. /x"))[0]?.patterns).toEqual(["/opt/*", "/*"]);
  });

  test("leaves alone what stays inside, what is opaque, and what is no command", async () => {
    expect(await expand("ls ../ a/b")).toHaveLength(1);
    expect(await expand("cat /etc/passwd; id")).toHaveLength(1);
    const read = { permission: "read", patterns: ["/etc/passwd"] };
    expect(await policy.expand(read, resolve)).toEqual([read]);
  });
});
