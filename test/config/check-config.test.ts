import { mkdirSync, mkdtempSync, readdirSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, onTestFinished, test } from "vitest";
import { declaredTools } from "../../src/compose/built-in-tools.ts";
import { checkConfig } from "../../src/config/check-config.ts";
import { loadConfig } from "../../src/config/config.ts";

const token = (id: string, more: string, roles = '"caller"') =>
  `[[token]]\nid = "${id}"\nroles = [${roles}]\n${more}\n`;
const [one, two] = ["1".repeat(24), "2".repeat(24)];

/** A group of two, and an entry of approvals. */
const approval = (more: string) => `[group.sre]\nmembers = ["local:ann", "local:bob"]\n\n[[approval]]\n${more}\n`;

/** A runner of agents whose program exists. */
const runner = (more = "") =>
  `[agent_runner.r]\ncommand = "/usr/bin/env"\n${more.includes("agents") ? "" : 'agents = ["build"]\n'}${more}\n`;

const notify = (more = "") =>
  `public_url = "https://gate.example"\n[channel.ops]\nkind = "ntfy"\nurl = "https://ntfy.example"\nto = "t"\n${token("a", `value = "${one}"`)}[[notify]]\n${more.includes("channels") ? "" : 'channels = ["ops"]\n'}${more}\n`;

const refused: readonly (readonly [what: string, settings: string, reason: string])[] = [
  ["a workspace that is missing", '[workspace]\nmain = "missing"', 'workspace "main" is'],
  ["a token file that is missing", token("a", 'file = "missing.token"'), "missing.token cannot be read"],
  ["a token variable that is not set", token("a", 'env = "NOT_SET"'), "NOT_SET is not set"],
  ["two tokens of one id", token("a", `value = "${one}"`) + token("a", `value = "${two}"`), "have the same id"],
  ["a certificate without its key", 'tls_cert = "cert.pem"', "tls_key is not set"],
  ["an address beyond loopback without TLS", 'listen = "0.0.0.0:7420"', "sends tokens over the network unencrypted"],
  ["a runner of an unknown agent", runner('agents = ["poet"]'), 'the agent "poet" is not configured'],
  ["a runner outside the workspace", runner('cwd = "../x"'), "leads out of the workspace"],
  [
    "a runner with a program that tools could change",
    `[workspace]\nmain = "/usr"\n${runner()}`,
    "lies inside the workspace",
  ],
  ["a Bun that does not exist", '[tools]\nbun = "./missing"', "bun under [tools] names"],
  ["a variable of tools with a value", '[tools]\nenv = ["A=b"]', "the name of a variable"],
  ["a runner without agents", '[agent_runner.r]\ncommand = "sh"', "agent_runner.r.agents"],
  [
    "an MCP server that is a program and an address",
    '[mcp.m]\ncommand = "sh"\nurl = "https://a.example"',
    "exactly one of",
  ],
  [
    "an MCP server with an address that has folders",
    '[mcp.m]\nurl = "https://a.example"\nfolders = ["."]',
    "are for a command",
  ],
  [
    "an MCP server with a program that tools could change",
    `[workspace]\nmain = "/usr"\n[mcp.m]\ncommand = "/usr/bin/env"`,
    "lies inside the workspace",
  ],
  ["a language server of which nothing is known", "[lsp.zig]\nlanguages = { '.zig' = 'zig' }", "command is missing"],
  [
    "an extension without its dot",
    "[lsp.bash]\nlanguages = { sh = 'shellscript' }",
    "name each extension with its dot",
  ],
  ["an unknown key of a language server", "[lsp.bash]\nroots = []", 'unknown key "roots"'],
  [
    "a language server with a program that tools could change",
    `[workspace]\nmain = "/usr"\n[lsp.bash]\ncommand = "/usr/bin/env"`,
    "lies inside the workspace",
  ],
  ["a notice by an unknown channel", notify('channels = ["oops"]'), ':10: [[notify]] reaches nobody by "oops"'],
  ["a receiver of the audit without a place", "[audit_export.siem]", ":1: [audit_export.siem] has no receiver, or two"],
  ["a token for a file", '[audit_export.siem]\nfile = "/a"\nsecret_file = "/b"', "sends no token to a file"],
  [
    "an audit that waits for less than its retention",
    "audit_max_days = 7",
    ":1: audit_max_days is below audit_days (400)",
  ],
  ["a notice to an unknown group", notify('to = ["sre"]'), ':12: [[notify]] reaches nobody by "sre"'],
  ["a notice to a person of an unknown provider", notify('to = ["corp:ann"]'), 'has no one in it by "corp:ann"'],
  ...(
    [
      ["", ""],
      ['permission = "b*"', 'permission = "bash"'],
      ['agent = "c?*"', 'agent = "ci*x"'],
      ['risk = ["network", "deletes"]', 'risk = ["deletes"]\npermission = "bash"'],
    ] as const
  ).map(
    ([earlier, later]) =>
      [
        `an entry with ${later || "everything"} after one that covers it`,
        `${notify(earlier)}[[notify]]\nchannels = []\n${later}\n`,
        "covers its requests",
      ] as const,
  ),
  ["approvals of an unknown group", approval('from = ["ops"]'), ':5: [[approval]] can never be approved by "ops"'],
  [
    "more approvals than members",
    approval('from = ["sre"]\napprove = 3'),
    ":6: [[approval]] can never be approved: it needs 3 persons, and sre has 2 members",
  ],
  [
    "further approvals of an unknown group",
    approval('also = [{ from = ["ops"] }]'),
    ':5: [[approval]] can never be approved by "ops"',
  ],
  ...[
    ['after = "10m", to = ["ops"]', "escalates to nobody: there is no [group.ops]"],
    ['after = "10m", channels = ["ops"]', "escalates to nobody: there is no [channel.ops]"],
    ['after = "10m"', "escalates to nobody new: add channels, or to"],
    ['after = "10m", to = ["sre"]', "escalates to nobody new"],
    ['after = "9m", to = ["lead"] }, { after = "10m", to = ["lead"]', "escalates to nobody new"],
    ['after = "15m", to = ["lead"]', "never escalates: its requests have ended after 15m"],
    ['after = "9m", to = ["lead"] }, { after = "9m", to = ["boss"]', "escalates after 9m twice or out of order"],
  ].map(([step = "", problem = ""]): [string, string, string] => [
    `steps: ${step}`,
    `${approval(`from = ["sre"]\nescalate = [{ ${step} }]`)}${["lead", "boss"].map((name) => `[group.${name}]\nmembers = ["local:eve"]\n`).join("")}`,
    `:6: [[approval]] ${problem}`,
  ]),
  [
    "a step that adds a group where anyone may approve",
    approval('escalate = [{ after = "10m", to = ["sre"] }]'),
    ":5: [[approval]] escalates to nobody new",
  ],
  [
    "more rejections than approvals",
    approval("approve = 2\nreject = 3"),
    ":6: [[approval]] would make it harder to reject",
  ],
  [
    "approvals for longer than 30 days",
    approval('ask = "31d"'),
    ":5: [[approval]] stays open for 31d: at most 30 days",
  ],
  [
    "two approvers where everyone is one",
    `insecure_no_auth = true\n${approval("approve = 2")}`,
    ":6: [[approval]] can never be approved: with insecure_no_auth",
  ],
  [
    "approvals after an entry that covers them",
    `${approval('permission = "b*"\npattern = "kubectl *"')}[[approval]]\npermission = "bash"\npattern = "kubectl get *"\n`,
    ":7: [[approval]] decides nothing: the entry in line 4 covers its requests",
  ],
  ["a token of one character", token("a", 'value = "x"'), 'token "a" has 1 characters'],
];

describe("check-config", () => {
  test.each(refused)("refuses %s, as a start does", async (_what, settings, reason) => {
    const { check, start } = machine(settings);
    await expect(check()).rejects.toThrow(reason);
    expect(start).toThrow(reason);
  });

  test.each([
    ['permission = "bash"', ""],
    ['agent = "c?*"', 'agent = "c*"'],
    ['risk = ["network"]', 'risk = ["network", "deletes"]'],
    ['risk = ["network"]', ""],
    ['workspace = "a"', 'permission = "bash"'],
  ])("accepts notices of %s, then those of %j", async (earlier, later) => {
    const { check } = machine(`${notify(earlier)}[[notify]]\nchannels = []\n${later}\n`);
    expect((await check()).findings).toEqual([]);
  });

  test("warns of approvals for which a group has enough members only with those of its provider", async () => {
    const provider =
      '[oidc.corp]\nissuer = "https://login.example"\nclient_id = "t"\n[[role_map]]\nissuer = "corp"\ngroup = "*"\nroles = ["approver"]\n';
    const { check } = machine(
      `${provider}[group.sre]\nclaims = ["corp:sre"]\n[[approval]]\nfrom = ["sre"]\napprove = 2\n`,
    );
    expect((await check()).findings).toEqual([
      {
        severity: "warning",
        line: 12,
        message: expect.stringContaining("check that the groups of identity providers have"),
      },
    ]);
  });

  test("refuses a plugin that is missing", async () => {
    await expect(machine('plugin = ["./missing.ts"]').check()).rejects.toThrow("missing.ts does not exist");
  });

  test("accepts such settings where nothing is missing, and creates nothing", async () => {
    const { check, home, configuration } = machine(
      `plugin = ["./guard.ts"]\n[workspace]\nmain = "../../current"\n${token("a", 'file = "a.token"')}${token("b", `value = "${two}"`)}`,
    );
    writeFileSync(join(configuration, "a.token"), one);
    writeFileSync(join(configuration, "guard.ts"), "");
    const before = readdirSync(home, { recursive: true }).toSorted();
    expect((await check()).findings).toEqual([]);
    expect(readdirSync(home, { recursive: true }).toSorted()).toEqual(before);
  });

  test("judges the file and not the directory it is called in", async () => {
    const { check, home } = machine(token("a", `value = "${one}"`));
    // The home directory holds the data directory, so a start in it would be refused.
    expect((await check(home)).findings).toEqual([]);
  });

  test("warns of runners whose program, variable or network is missing, with their lines", async () => {
    const { check } = machine(
      [
        token("a", `value = "${one}"`),
        runner('env = ["NOT_SET"]'),
        '[agent_runner.missing]\ncommand = "./missing"\nagents = ["plan"]',
        '[sandbox.agent.plan]\nnetwork = "none"',
      ].join("\n"),
    );
    expect((await check()).findings.map(({ line, message }) => [line, message])).toEqual([
      [6, expect.stringContaining("the variable NOT_SET is not set")],
      [11, expect.stringMatching(/the program .*missing is not found/)],
      [11, expect.stringContaining("no network")],
    ]);
  });

  test("warns of MCP servers whose program, folder or variable is missing, with their lines", async () => {
    const { check } = machine(
      [
        token("a", `value = "${one}"`),
        '[mcp.notes]\ncommand = "./missing"\nfolders = ["./nowhere"]\nenv = ["NOT_SET"]',
        '[mcp.remote]\nurl = "https://a.example/mcp"\nheader_env = { Authorization = "UNSET" }',
      ].join("\n"),
    );
    expect((await check()).findings.map(({ line, message }) => [line, message])).toEqual([
      [6, expect.stringMatching(/mcp "notes": the program .*missing is not found/)],
      [6, expect.stringMatching(/the folder .*nowhere does not exist/)],
      [6, expect.stringContaining("the variable NOT_SET is not set")],
      [10, expect.stringContaining('mcp "remote": the variable UNSET is not set')],
    ]);
  });

  test("warns of a variable of tool processes that is not set, with its line", async () => {
    const { check } = machine(`${token("a", `value = "${one}"`)}[tools]\nhosts = ["a.example"]\nenv = ["NOT_SET"]`);
    expect((await check()).findings.map(({ line, message }) => [line, message])).toEqual([
      [7, expect.stringContaining("env under [tools] names the variable NOT_SET, which is not set")],
    ]);
  });

  test("warns of language servers whose program or variable is missing, with their lines", async () => {
    const { check } = machine(`${token("a", `value = "${one}"`)}[lsp.bash]\ncommand = "./missing"\nenv = ["NOT_SET"]`);
    expect((await check()).findings.map(({ line, message }) => [line, message])).toEqual([
      [5, expect.stringMatching(/lsp "bash": the program .*missing is not found/)],
      [5, expect.stringContaining('lsp "bash": the variable NOT_SET is not set')],
    ]);
  });

  test("warns of a token that is caller and approver, with its line", async () => {
    const { check } = machine(
      token("host", `value = "${one}"`) + token("me", `value = "${two}"`, '"caller", "approver"'),
    );
    expect((await check()).findings).toMatchObject([
      { severity: "warning", line: 5, message: expect.stringContaining('token "me" is caller and approver') },
    ]);
  });
});

test("a data directory that cannot be created is refused at once", () => {
  const { start } = machine("");
  expect(() => start({ data: "/proc/x/y" })).toThrow("the directory /proc/x cannot be created");
});

/** A home directory with a configuration file. */
function machine(settings: string) {
  const home = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-check-")));
  onTestFinished(() => rmSync(home, { recursive: true }));
  const configuration = join(home, ".config", "toolgate");
  mkdirSync(configuration, { recursive: true });
  const file = join(configuration, "toolgate.toml");
  writeFileSync(file, settings);
  const project = join(home, "current");
  mkdirSync(project);
  return {
    home,
    configuration,
    check: async (directory = project) => checkConfig(file, { env: {}, home, directory }, await declaredTools()),
    start: (flags: { data?: string } = {}) =>
      loadConfig({ config: file, ...flags }, { env: {}, home, directory: project }),
  };
}
