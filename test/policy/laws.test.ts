import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import {
  type Grant,
  GrantSchema,
  GrantScope,
  PermissionAction,
  type PermissionDecision,
  PermissionLayer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { coversAsk, matchCovers, withGrants } from "../../src/approval/grants.ts";
import { createPermissions } from "../../src/approval/permissions.ts";
import type { Store } from "../../src/call/ports.ts";
import { createLayers } from "../../src/policy/layers.ts";
import type { ExpandedAsk, Subject } from "../../src/policy/model.ts";
import { createPolicy, strictest } from "../../src/policy/policy.ts";
import type { Rule } from "../../src/policy/rules.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";

const { ALLOW, ASK, DENY } = PermissionAction;
const policy = createPolicy({ guard: { dataDirectory: "/guarded" }, home: "/home/me" });

const kind = fc.constantFrom("bash", "edit", "webfetch");
const text = fc.oneof(
  fc
    .array(fc.constantFrom("git", "push", "log", "--force", "rm", "-rf", "x"), { minLength: 1, maxLength: 4 })
    .map((words) => words.join(" ")),
  fc.constantFrom("", "*", "echo $HOME", "git log; rm x", "a\u202eb", "/guarded/store", "sudo rm x", "src/a.ts"),
);
const rulePattern = fc
  .oneof(text, fc.constantFrom("git *", "rm *", "*", "git push*"))
  .filter((pattern) => pattern !== "");
const rule: fc.Arbitrary<Rule> = fc.record({
  permission: fc.oneof(kind, fc.constant("*")),
  pattern: rulePattern,
  action: fc.constantFrom(ALLOW, ASK, DENY),
});
const rules = fc.array(rule, { maxLength: 6 });
const arbitraryAsk: fc.Arbitrary<ExpandedAsk> = fc.record({
  permission: kind,
  patterns: fc.array(text, { maxLength: 3 }),
});
const grant = fc
  .record({
    permission: kind,
    scope: fc.constantFrom(GrantScope.SESSION, GrantScope.AGENT, GrantScope.PROJECT),
    tool: fc.constantFrom("bash", "bash", "other"),
    agent: fc.constantFrom("build", "build", "plan"),
    binding: fc.constantFrom("b1", "b1", "b1:/a", "b2"),
    match: fc.oneof(
      text.map((value) => ({ match: { case: "exact" as const, value } })),
      rulePattern.map((value) => ({ match: { case: "wildcard" as const, value } })),
      text.map((value) => ({ match: { case: "prefix" as const, value: { words: value.split(" ").slice(0, 2) } } })),
    ),
  })
  .map((fields) => create(GrantSchema, { id: "grt_1", ...fields }));
const grants = fc.array(grant, { maxLength: 8 });

const subject: Subject = {
  session: create(SessionSchema, { id: "ses_1", rootSessionId: "ses_1", agent: "build" }),
  ancestors: [],
  agent: "build",
  workspace: "default",
  directory: "/workspace",
  tool: "bash",
  binding: "b1",
};
const layersOf = (config: readonly Rule[], own: readonly Rule[] = [], above: readonly Rule[] = []) =>
  createLayers({ config, agents: new Map() })({
    session: create(SessionSchema, { rules: [...own] }),
    ancestors: [create(SessionSchema, { rules: [...above] })],
    agent: "build",
  });

test("no set of grants turns a deny into an allow, or does anything but turn ask into allow", () => {
  fc.assert(
    fc.property(rules, rules, arbitraryAsk, grants, (config, own, asked, given) => {
      const byRules = [{ ask: asked, decisions: policy.judge(asked, layersOf(config, own)) }];
      const { judged } = withGrants(byRules, given, subject);
      const before = strictest(byRules[0]?.decisions ?? []);
      const after = strictest(judged[0]?.decisions ?? []);
      expect([before, after]).toEqual([before, before === ASK && after === ALLOW ? ALLOW : before]);
      for (const [i, { action }] of (byRules[0]?.decisions ?? []).entries()) {
        if (action === DENY) expect(judged[0]?.decisions[i]?.action).toBe(DENY);
      }
    }),
    { numRuns: 2_000 },
  );
});

test("rules of a caller or of a parent session only make a decision stricter", () => {
  fc.assert(
    fc.property(rules, rules, rules, arbitraryAsk, (config, own, above, asked) => {
      const without = policy.judge(asked, layersOf(config));
      const all = policy.judge(asked, layersOf(config, own, above));
      for (const [i, { action }] of without.entries()) expect(all[i]?.action).toBeGreaterThanOrEqual(action);
    }),
    { numRuns: 2_000 },
  );
});

let directory: string;
let store: Store;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "toolgate-laws-"));
  store = await openSqliteStore({ directory });
});
afterAll(async () => {
  await store.calls.close();
  await rm(directory, { recursive: true });
});

/** An independent statement of the law: which grants a person gave for an ask of this subject, whatever it touches. */
const isGivenFor = (ask: ExpandedAsk) => (given: Grant) =>
  given.permission === ask.permission &&
  given.tool === "bash" &&
  given.binding === (ask.cwd === undefined ? "b1" : `b1:${ask.cwd}`) &&
  (given.scope !== GrantScope.AGENT || given.agent === "build");

/** True if grants allow the ask: each pattern that asks has one, and none asks always. */
function isGranted(given: readonly Grant[], ask: ExpandedAsk, decisions: readonly PermissionDecision[]): boolean {
  const asking = decisions.filter(({ action }) => action === ASK);
  const serving = given.filter(isGivenFor(ask));
  return (
    strictest(decisions) === ASK &&
    asking.every(({ layer }) => layer !== PermissionLayer.ENGINE) &&
    asking.every(
      ({ pattern }) => ask.patterns.includes(pattern) && serving.some(({ match }) => matchCovers(match, pattern)),
    )
  );
}

test("grants allow exactly what was granted: for this permission, tool, directory and agent", () => {
  const placed = fc.record({ ask: arbitraryAsk, cwd: fc.constantFrom(undefined, "/a", "/b") });
  fc.assert(
    fc.property(rules, placed, grants, (config, { ask, cwd }, given) => {
      const asked = cwd === undefined ? ask : { ...ask, cwd };
      const decisions = policy.judge(asked, layersOf(config));
      const { judged } = withGrants([{ ask: asked, decisions }], given, subject);
      const isAllowed = strictest(decisions) === ASK && strictest(judged[0]?.decisions ?? []) === ALLOW;
      expect(isAllowed).toBe(isGranted(given, asked, decisions));
    }),
    { numRuns: 4_000 },
  );
});

test("grants that are saved while an ask waits settle it exactly if they would allow an equal later ask", () => {
  fc.assert(
    fc.property(rules, arbitraryAsk, grants, grants, (config, asked, earlier, later) => {
      const layersFor = () => layersOf(config);
      const permissions = createPermissions({
        store: store.permissions,
        policy,
        effects: { fail: (part) => part, replaceInput: () => "no difference" },
        plainAlways: "narrowest",
        newId: (prefix) => `${prefix}_1`,
        now: () => 1,
      });
      const byRules = [{ ask: asked, decisions: policy.judge(asked, layersFor()) }];
      const waiting = withGrants(byRules, earlier, subject).judged;
      fc.pre(strictest(waiting[0]?.decisions ?? []) === ASK);
      const request = permissions.request(asked, waiting[0]?.decisions ?? [], { agent: "build" }, subject, "per_1");
      const twin = withGrants(byRules, [...later, ...earlier], subject).judged;
      const isSettled = coversAsk([...later, ...earlier], request, "bash") !== undefined;
      expect(isSettled).toBe(strictest(twin[0]?.decisions ?? []) === ALLOW);
    }),
    { numRuns: 2_000 },
  );
});
