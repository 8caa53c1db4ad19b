import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { PermissionAction, PermissionLayer, PermissionReason } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { RiskKind } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ApprovalRule } from "../../src/policy/approval-rules.ts";
import { knownPermissions } from "../../src/policy/known-permissions.ts";
import { defaultRules } from "../../src/policy/layers.ts";
import type { ExpandedAsk, Layers } from "../../src/policy/model.ts";
import { createPolicy, strictest } from "../../src/policy/policy.ts";
import { fromConfig, type Rule, type RuleConfig } from "../../src/policy/rules.ts";
import { wildcard } from "../../src/policy/wildcard.ts";
import { evaluate } from "./evaluate.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const policy = createPolicy({ guard: { dataDirectory: "/home/u/.local/share/toolgate" }, home: "/home/u" });

function configured(config: RuleConfig, narrow: RuleConfig[] = []): Layers {
  return {
    wide: [
      { layer: PermissionLayer.DEFAULTS, rules: defaultRules },
      { layer: PermissionLayer.CONFIG, rules: fromConfig(config, "/home/u") },
    ],
    narrow: narrow.map((list) => ({ layer: PermissionLayer.SESSION, rules: fromConfig(list, "/home/u") })),
  };
}

const judge = (ask: ExpandedAsk, layers: Layers) => strictest(policy.judge(ask, layers));
const bash = (line: string, layers: Layers) => judge({ permission: "bash", patterns: [line], cwd: "/srv/p" }, layers);
const file = (permission: string, path: string, layers: Layers) =>
  judge({ permission, patterns: [path], paths: [path.startsWith("/") ? path : `/srv/p/${path}`] }, layers);

const anyRule: fc.Arbitrary<Rule> = fc.record({
  permission: fc.constantFrom("webfetch", "task", "mcp_*", "mcp_a", "*"),
  pattern: fc.string({ unit: fc.constantFrom("a", "b", " ", "*", "?", " *"), maxLength: 5 }),
  action: fc.constantFrom(ALLOW, ASK, DENY),
});
const anyList = fc.array(anyRule, { maxLength: 12 });
const anyPermission = fc.constantFrom("webfetch", "task", "mcp_a", "mcp_b", "other");
const anyText = fc.string({ unit: fc.constantFrom("a", "b", " "), maxLength: 6 });

describe("laws", () => {
  test("wide layers are one list, of which the last match wins", () => {
    fc.assert(
      fc.property(fc.array(anyList, { maxLength: 4 }), anyPermission, anyText, (lists, permission, text) => {
        const layers = { wide: lists.map((rules) => ({ layer: PermissionLayer.CONFIG, rules })), narrow: [] };
        expect(judge({ permission, patterns: [text] }, layers)).toBe(evaluate(permission, text, ...lists).action);
      }),
      { numRuns: 3_000 },
    );
  });

  test("a narrow list can only make it stricter, and does so exactly as far as it has an opinion", () => {
    fc.assert(
      fc.property(anyList, anyList, anyPermission, anyText, (list, rules, permission, text) => {
        const ask = { permission, patterns: [text] };
        const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules: list }], narrow: [] };
        const alone = judge(ask, layers);
        const both = judge(ask, { ...layers, narrow: [{ layer: PermissionLayer.SESSION, rules }] });
        const silent: Rule = { permission: "*", pattern: "*", action: ALLOW };
        expect(both).toBe(Math.max(alone, evaluate(permission, text, [silent], rules).action));
      }),
      { numRuns: 3_000 },
    );
  });

  test("a narrow list never makes a command less strict", () => {
    const words = fc.string({ unit: fc.constantFrom("a", "b", " ", "/", ";", "*", "="), maxLength: 8 });
    const rule = fc.record({
      permission: fc.constantFrom("bash", "*"),
      pattern: fc.constantFrom("*", "a *", "b *", "a b *", "*b"),
      action: fc.constantFrom(ALLOW, ASK, DENY),
    });
    const rules = fc.array(rule, { maxLength: 6 });
    fc.assert(
      fc.property(rules, rules, words, (list, narrower, line) => {
        const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules: list }], narrow: [] };
        const both = { ...layers, narrow: [{ layer: PermissionLayer.SESSION, rules: narrower }] };
        expect(bash(line, both)).toBeGreaterThanOrEqual(bash(line, layers));
      }),
      { numRuns: 3_000 },
    );
  });

  test("of several patterns the strictest decides, each has its decision, in order", () => {
    const layers = configured({ webfetch: { "a*": "allow", "b*": "deny" } });
    const decisions = policy.judge({ permission: "webfetch", patterns: ["a1", "b1", "c1"] }, layers);
    expect(decisions.map(({ pattern, action }) => [pattern, action])).toEqual([
      ["a1", ALLOW],
      ["b1", DENY],
      ["c1", ASK],
    ]);
    expect(strictest(decisions)).toBe(DENY);
    expect(strictest([])).toBe(ASK);
  });

  test("an ask without patterns is never allowed, and stays denied where all is denied", () => {
    expect(judge({ permission: "webfetch", patterns: [] }, configured({ "*": "allow" }))).toBe(ASK);
    expect(judge({ permission: "webfetch", patterns: [] }, configured({ "*": "deny" }))).toBe(DENY);
  });
});

describe("defaults", () => {
  const layers = configured({});

  test.each([
    ["read", "src/a.ts", ALLOW],
    ["read", ".env", ASK],
    ["read", "deploy/prod.env", ASK],
    ["read", ".env.local", ASK],
    ["read", "sub/.envrc", ASK],
    ["read", ".ENV", ASK],
    ["read", ".env.example", ALLOW],
    ["grep", "TODO", ALLOW],
    ["todowrite", "*", ALLOW],
    ["edit", "src/a.ts", ASK],
    ["bash", "ls", ASK],
    ["external_directory", "/etc/*", ASK],
    ["some_mcp_tool", "x", ASK],
  ])("%s %s", (permission, pattern, action) => {
    expect(judge({ permission, patterns: [pattern] }, layers)).toBe(action);
  });
});

describe("paths", () => {
  test("a rule that starts with a slash or the home directory matches the absolute path, any other the displayed one", () => {
    const layers = configured({ edit: { "src/*": "allow", "/srv/p/src/keep/*": "deny", "~/notes/*": "allow" } });
    expect(file("edit", "src/a.ts", layers)).toBe(ALLOW);
    expect(file("edit", "src/keep/a.ts", layers)).toBe(DENY);
    expect(file("edit", "/home/u/notes/a.md", layers)).toBe(ALLOW);
    expect(file("edit", "/srv/p-evil/src/a.ts", layers)).toBe(ASK);
  });

  test("session rules expand the home directory too; ~name is a file of that name", () => {
    const deny = (pattern: string): Layers => ({
      wide: [{ layer: PermissionLayer.CONFIG, rules: fromConfig({ edit: "allow" }, "/home/u") }],
      narrow: [{ layer: PermissionLayer.SESSION, rules: [{ permission: "edit", pattern, action: DENY }] }],
    });
    expect(file("edit", "/home/u/.ssh/config", deny("~/.ssh/*"))).toBe(DENY);
    expect(file("edit", "~bob/x", deny("~bob/*"))).toBe(DENY);
  });

  test("ask and deny ignore the case of a path, allow does not", () => {
    const layers = configured({ edit: { "*": "ask", "src/*": "allow", "src/SECRET/*": "deny" } });
    expect(file("edit", "src/secret/a", layers)).toBe(DENY);
    expect(file("edit", "SRC/a", layers)).toBe(ASK);
  });

  test("a backslash is a slash in paths and only there", () => {
    const layers = configured({ edit: { "src\\*": "deny" }, webfetch: { "*": "allow", "a\\b": "deny" } });
    expect(file("edit", "src/a.ts", layers)).toBe(DENY);
    expect(judge({ permission: "webfetch", patterns: ["a/b"] }, layers)).toBe(ALLOW);
    expect(judge({ permission: "grep", patterns: ["\\.env$"] }, configured({ grep: { "/.env$": "deny" } }))).toBe(DENY);
  });
});

describe("explaining", () => {
  test("names the layer, the index and the rule, as fields and as text", () => {
    const [found] = policy.judge(
      { permission: "bash", patterns: ["git log"], cwd: "/srv/p" },
      configured({ edit: "deny", bash: { "*": "ask", "git *": "allow" } }),
    );
    expect(found).toMatchObject({
      permission: "bash",
      pattern: "git log",
      action: ALLOW,
      layer: PermissionLayer.CONFIG,
      ruleIndex: 2,
      rule: { permission: "bash", pattern: "git *", action: ALLOW },
      reason: 'config rule 2 (bash "git *" allow)',
    });
  });

  test("reports that no rule matched, without a layer", () => {
    const [found] = policy.judge({ permission: "task", patterns: ["x"] }, configured({}));
    expect(found).toMatchObject({ action: ASK, layer: PermissionLayer.UNSPECIFIED, reason: "no rule matches: ask" });
    expect(found?.ruleIndex).toBeUndefined();
    expect(found?.rule).toBeUndefined();
  });

  test("names the session rule that was stricter", () => {
    const layers = configured({ bash: "allow" }, [{ bash: { "rm *": "deny" } }]);
    const [found] = policy.judge({ permission: "bash", patterns: ["/bin/rm -r x"], cwd: "/srv/p" }, layers);
    expect(found?.layer).toBe(PermissionLayer.SESSION);
    expect(found?.reason).toBe('session rule 0 (bash "rm *" deny) meets "rm -r x"');
  });

  test("lists every rule that matched, in the order of the layers, and marks the one that decided", () => {
    const layers = configured({ "*": "ask", read: "allow", bash: { "git *": "allow", "rm *": "deny" } }, [
      { bash: { "git push *": "ask" } },
    ]);
    const [found] = policy.judge({ permission: "bash", patterns: ["/usr/bin/git push"], cwd: "/srv/p" }, layers);
    expect(found).toMatchObject({ reasonCode: PermissionReason.RULE, moreMatches: 0 });
    expect(found?.matches.map((match) => [match.layer, match.ruleIndex, match.text, match.decided])).toEqual([
      [PermissionLayer.CONFIG, 0, "", true],
      [PermissionLayer.CONFIG, 2, "git push", false],
      [PermissionLayer.SESSION, 0, "git push", false],
    ]);
  });

  test("lists only the last of very many matches, and the one that decided", () => {
    const rules = fromConfig({ webfetch: "deny" }, "");
    const wide = [{ layer: PermissionLayer.CONFIG, rules }];
    const silent = Array.from({ length: 80 }, () => ({ permission: "*", pattern: "*", action: ALLOW }));
    const narrow = [{ layer: PermissionLayer.SESSION, source: "ses_1", rules: silent }];
    const [found] = policy.judge({ permission: "webfetch", patterns: ["x"] }, { wide, narrow });
    expect(found).toMatchObject({ action: DENY, moreMatches: 30 });
    expect(found?.matches).toHaveLength(51);
    expect(found?.matches[0]).toMatchObject({ layer: PermissionLayer.CONFIG, decided: true });
    expect(found?.matches.at(-1)).toMatchObject({ source: "ses_1", ruleIndex: 79 });
  });

  test.each<[string, ExpandedAsk, RuleConfig, PermissionReason]>([
    ["no rule", { permission: "task", patterns: ["x"] }, {}, PermissionReason.NO_RULE],
    ["no pattern", { permission: "task", patterns: [] }, { task: "allow" }, PermissionReason.NO_PATTERN],
    [
      "an opaque line",
      { permission: "bash", patterns: ["ls $(id)"] },
      { bash: { "ls *": "allow" } },
      PermissionReason.OPAQUE_COMMAND,
    ],
    [
      "the data directory",
      { permission: "read", patterns: ["/home/u/.local/share/toolgate/x"] },
      {},
      PermissionReason.PROTECTED,
    ],
  ])("has a code for %s", (_, ask, config, code) => {
    expect(policy.judge(ask, configured(config))[0]?.reasonCode).toBe(code);
  });

  test("asks about everything while a list cannot be read, with the reason", () => {
    const problem = ".opencode/config.toml, line 2: it cannot be read";
    const narrow = [{ layer: PermissionLayer.WORKSPACE, rules: [], problem }];
    const layers = { ...configured({ bash: { "*": "allow", "rm *": "deny" } }), narrow };
    expect(policy.judge({ permission: "read", patterns: ["a.ts"] }, layers)[0]).toMatchObject({
      action: ASK,
      layer: PermissionLayer.WORKSPACE,
      reason: `${problem}: everything asks`,
      reasonCode: PermissionReason.BROKEN_POLICY,
    });
    expect(bash("rm x", layers)).toBe(DENY);
  });

  test("an inherited list counts only where its last match denies", () => {
    const rules = fromConfig({ bash: { "*": "deny", "git *": "allow", "git push *": "ask" }, read: "ask" }, "");
    const narrow = [{ layer: PermissionLayer.INHERITED, source: "ses_1", rules }];
    const layers = { wide: [{ layer: PermissionLayer.CONFIG, rules: fromConfig("allow", "") }], narrow };
    expect([bash("ls", layers), bash("git log", layers), bash("git push", layers)]).toEqual([DENY, ALLOW, ALLOW]);
    expect(file("read", "a.ts", layers)).toBe(ALLOW);
    expect(bash("git log $(ls)", layers)).toBe(DENY);
  });

  test("a decision beside which a rule matches never says that none does", () => {
    const layers = configured({ bash: { "rm *": "allow" } });
    const [decision] = policy.judge({ permission: "bash", patterns: ["timeout 5 rm x"] }, layers);
    expect(decision?.action).toBe(ASK);
    expect(decision?.reason).toBe(
      'config rule 0 (bash "rm *" allow) matches only "rm x", and no rule allows the rest: ask',
    );
    const narrow = [{ layer: PermissionLayer.SESSION, source: "s", rules: fromConfig({ x: "allow" }, "") }];
    expect(policy.judge({ permission: "x", patterns: ["y"] }, { wide: [], narrow })[0]?.reason).toBe(
      'session rule 0 (x "*" allow) can only narrow, and no rule allows the rest: ask',
    );
  });
});

describe("permissions that can ask", () => {
  const tools = ["bash", "edit", "glob", "grep", "list", "read", "webfetch"];
  const known = knownPermissions(tools.map((name) => ({ name, permissions: undefined })));

  test("are those that no rule settles, by name, and * for all others", () => {
    // The engine asks in some cases of these, whatever rules allow.
    const byEngine = [
      "bash",
      "edit",
      "external_directory",
      "glob",
      "grep",
      "list",
      "lsp",
      "question",
      "read",
      "webfetch",
    ];
    const unruled = ["*", "codesearch", "doom_loop", "task", "websearch"];
    expect(policy.asking(configured({}), known)).toEqual([...byEngine, ...unruled].sort());
    expect(policy.asking(configured("allow"), known)).toEqual(byEngine);
    expect(policy.asking(configured("deny"), known)).toEqual([]);
    expect(
      policy.asking(configured({ "*": "deny", "mcp_*": "ask", task: { a: "ask", "*": "allow", b: "ask" } }), known),
    ).toEqual(["mcp_*", "task"]);
    expect(
      policy.asking(configured("allow", [{ task: "ask", bash: "deny", edit: { "*": "deny", x: "allow" } }]), known),
    ).toEqual([...byEngine.filter((name) => name !== "bash"), "task"].sort());
  });

  test("are complete", () => {
    fc.assert(
      fc.property(anyList, anyList, anyPermission, anyText, (list, rules, permission, text) => {
        const layers = {
          wide: [{ layer: PermissionLayer.CONFIG, rules: list }],
          narrow: [{ layer: PermissionLayer.SESSION, rules }],
        };
        if (judge({ permission, patterns: [text] }, layers) !== ASK) return;
        const asking = policy.asking(layers, known);
        expect(asking.some((name) => name === permission || wildcard(permission, name))).toBe(true);
      }),
      { numRuns: 3_000 },
    );
  });
});

describe("hides", () => {
  test.each<[string, RuleConfig, RuleConfig[], boolean]>([
    ["there is no rule", {}, [], false],
    ["all is denied", { bash: "deny" }, [], true],
    ["a part is denied", { bash: { "rm *": "deny" } }, [], false],
    ["all is denied and then a part again", { bash: { "*": "deny", "rm *": "deny" } }, [], true],
    ["a part is allowed after all was denied", { bash: { "*": "deny", "git *": "allow" } }, [], false],
    ["a catch-all ask comes later", { "ba*": "deny", "*": "ask" }, [], false],
    ["a session denies all", { bash: "allow" }, [{ bash: "deny" }], true],
    ["a session denies all except a part", { bash: "allow" }, [{ bash: { "*": "deny", "git *": "allow" } }], false],
  ])("when %s", (_, config, narrow, hidden) => {
    expect(policy.hides(configured(config, narrow), "bash")).toBe(hidden);
  });
});

describe("who has to approve an ask", () => {
  const entry = (pattern: string, approve: number, fields: Partial<ApprovalRule> = {}): ApprovalRule => ({
    ...{ permission: "bash", pattern, action: ASK, risks: [], agent: "*", workspace: "*" },
    ...{ all: [{ approve, from: [] }], reject: 1, always: true },
    ...{ reasonRequired: false, shownRequired: false, method: 0, otherPerson: false, escalate: [], ...fields },
  });
  const approvals = (rules: ApprovalRule[], ask: ExpandedAsk) =>
    policy
      .approvalOf({ rules, groups: [] }, ask, { agent: "build", workspace: "shop" })
      ?.need.all.map(({ approve }) => approve);
  const kubectl = entry("kubectl *", 2);
  const command = (...patterns: string[]): ExpandedAsk => ({
    permission: "bash",
    patterns,
    line: patterns.join(" && "),
  });
  test("what one entry lets others approve later, another one that names the same groups does not", () => {
    const all = [{ approve: 1, from: ["sre"] }];
    const step = { afterMs: 600_000, to: ["lead"], channels: [] };
    const rules = [entry("kubectl *", 1, { all, escalate: [step] }), entry("helm *", 1, { all })];
    const needed = policy.approvalOf({ rules, groups: [] }, command("kubectl apply", "helm install"), {
      ...{ agent: "build", workspace: "shop" },
    });
    expect(needed?.need.all).toMatchObject([{ from: ["sre"] }, { from: ["sre"] }]);
    expect(needed?.escalate).toEqual([{ ...step, requirement: 0 }]);
  });

  test.each<[why: string, rules: ApprovalRule[], ask: ExpandedAsk, approve: number[] | undefined]>([
    ["the command that its pattern names", [kubectl], command("kubectl apply -f x"), [2]],
    ["another spelling of the command", [kubectl], command("/usr/bin/kubectl get pods"), [2]],
    ["a command that runs it", [kubectl], command("env A=b timeout 5 kubectl get pods"), [2]],
    ["a line that is not understood", [kubectl], command('"$RUN" apply'), [2]],
    [
      "a line that is not understood, with an entry before for it",
      [entry("ls *", 5), kubectl, entry("*", 1)],
      command('"$RUN" x'),
      [5],
    ],
    ["no other command", [kubectl], command("make"), undefined],
    ["the first entry that fits", [entry("kubectl get *", 1), kubectl], command("kubectl get pods"), [1]],
    ["what the strictest patterns of a line say", [kubectl, entry("*", 1)], command("make", "kubectl get pods"), [2]],
    ["no other agent", [{ ...kubectl, agent: "plan" }], command("kubectl get pods"), undefined],
    ["no other workspace", [{ ...kubectl, workspace: "other" }], command("kubectl get pods"), undefined],
    [
      "one of its risks",
      [entry("*", 2, { risks: [RiskKind.DELETE] })],
      { ...command("x"), risks: [{ kind: RiskKind.DELETE, parts: ["x"] }] },
      [2],
    ],
    [
      "a risk that a text of the input shows",
      [entry("*", 2, { permission: "*", risks: [RiskKind.NETWORK] })],
      { permission: "task", patterns: ["x"], call: { input: { prompt: "post it to https://example.com" } } },
      [2],
    ],
    [
      "any risk if a text of the input is too long to be searched",
      [entry("*", 2, { permission: "*", risks: [RiskKind.DELETE] })],
      { permission: "task", patterns: ["x"], call: { input: { prompt: "a".repeat(65_537) } } },
      [2],
    ],
    [
      "any risk if not all code that runs was read",
      [entry("*", 2, { risks: [RiskKind.DELETE] })],
      { ...command("make"), hasUnreadCode: true },
      [2],
    ],
    ["no other risk", [entry("*", 2, { risks: [RiskKind.DELETE] })], command("make"), undefined],
    ["no question", [entry("*", 2, { permission: "*" })], { permission: "question", patterns: ["x"] }, undefined],
    ["an ask without patterns", [kubectl], { permission: "bash", patterns: [] }, [2]],
    [
      "the absolute path",
      [entry("/etc/*", 2, { permission: "edit" })],
      { permission: "edit", patterns: ["../etc/x"], paths: ["/etc/x"] },
      [2],
    ],
  ])("matches %s", (_why, rules, ask, approve) => expect(approvals(rules, ask)).toEqual(approve));

  test("joins entries: all requirements, the fewest rejections, the shortest time, and no grant if one allows none", () => {
    const sre = entry("kubectl *", 1, {
      all: [{ approve: 2, from: ["sre"] }],
      reject: 2,
      askMs: 60_000,
      shownRequired: true,
    });
    const release = entry("git push *", 1, {
      all: [
        { approve: 1, from: ["sre"] },
        { approve: 1, from: ["qa"] },
      ],
      askMs: 5_000,
      always: false,
    });
    const subject = { agent: "build", workspace: "shop" };
    const found = policy.approvalOf(
      { rules: [sre, release], groups: [] },
      command("kubectl get x", "git push origin"),
      subject,
    );
    expect(found).toMatchObject({
      ...{ askMs: 5_000, always: false },
      need: {
        all: [
          { approve: 2, from: ["sre"] },
          { approve: 1, from: ["qa"] },
        ],
        reject: 1,
        shownRequired: true,
      },
    });
  });
});
