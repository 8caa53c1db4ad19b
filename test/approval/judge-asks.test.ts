import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import {
  ApprovalNeedSchema,
  type Grant,
  GrantMatchSchema,
  GrantSchema,
  GrantScope,
  PermissionAction,
  PermissionLayer,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { SessionSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { judgeAsks } from "../../src/approval/judge-asks.ts";
import type { PermissionStore } from "../../src/approval/ports.ts";
import type { CallRef } from "../../src/core/call-ref.ts";
import { createLayers } from "../../src/policy/layers.ts";
import type { ExpandedAsk, Subject } from "../../src/policy/model.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import type { Rule } from "../../src/policy/rules.ts";

const { ALLOW, ASK } = PermissionAction;
const policy = createPolicy({ guard: { dataDirectory: "/guarded" }, home: "/home/me" });
const session = create(SessionSchema, { id: "ses_1", rootSessionId: "ses_1", agent: "build" });
const subject: Subject = {
  session,
  ancestors: [],
  agent: "build",
  workspace: "default",
  directory: "/work",
  tool: "bash",
  binding: "b1",
};

const grantOf = (text: string, fields: MessageInitShape<typeof GrantSchema> = {}) =>
  create(GrantSchema, {
    id: `grt_${text}`,
    permission: "bash",
    tool: "bash",
    binding: "b1",
    scope: GrantScope.PROJECT,
    match: create(GrantMatchSchema, { match: { case: "exact", value: text } }),
    ...fields,
  });

interface JudgeOptions {
  /** The grants that the store still adopts; default: all. */
  living?: readonly Grant[];
  rules?: readonly Rule[];
  /** The reason why a policy file cannot be read. */
  problem?: string;
  /** The number of calls that a grant covers at most, by the configuration. */
  times?: number;
  /** Absent: no call counts. */
  call?: CallRef;
}

/** Judges one ask with these grants. */
async function judge(
  ask: ExpandedAsk,
  grants: readonly Grant[],
  { living = grants, rules = [], problem, times, call }: JudgeOptions = {},
) {
  const unused = () => Promise.reject(new Error("not used"));
  const store: PermissionStore = {
    grantsFor: async () => ({ grants: [...grants], rulesVersion: 7, asksVersion: 1 }),
    adoptGrant: async (_, id) => living.some((grant) => grant.id === id),
    takeGrant: unused,
    recordDecisions: unused,
    getAsk: unused,
    countOpenAsks: unused,
    countLongAsks: unused,
    findAsk: unused,
    asksOf: unused,
    openAsks: unused,
    openRequests: unused,
    dueAsks: unused,
    escalate: unused,
    settle: unused,
    getGrant: unused,
    listGrants: unused,
    revokeGrant: unused,
    confirmGrant: unused,
    listDecisions: unused,
    listAudits: unused,
  };
  const layers = createLayers({ config: rules, agents: new Map() })({ session, ancestors: [], agent: "build" });
  const unreadable = problem === undefined ? [] : [{ layer: PermissionLayer.WORKSPACE, rules: [], problem }];
  const all = { ...layers, narrow: [...layers.narrow, ...unreadable] };
  const approvalOf = () =>
    times === undefined ? undefined : { need: create(ApprovalNeedSchema), always: true, times, escalate: [] };
  return await judgeAsks({ store, policy, approvalOf }, [ask], subject, { layers: all, grants: "adopt", call });
}

const call: CallRef = { root: "ses_1", sessionId: "ses_1", callId: "call_1" };
const make: ExpandedAsk = { permission: "bash", patterns: ["make x"] };

test("a grant that was revoked after it was read and before the tree adopts it allows nothing", async () => {
  const [grant, other] = [grantOf("make x"), grantOf("make x", { id: "grt_other" })];
  expect(await judge(make, [grant])).toMatchObject({ action: ALLOW, rulesVersion: 7 });
  expect(await judge(make, [grant], { living: [] })).toMatchObject({ action: ASK, unapproved: [make] });
  const { action, decisions } = await judge(make, [grant, other], { living: [other] });
  expect([action, decisions.map(({ grantId }) => grantId)]).toEqual([ALLOW, ["grt_other"]]);
});

test("a grant with a limit covers what a call asks, not what is asked without a call that counts", async () => {
  const limited = grantOf("make x", { times: 2, left: 2 });
  expect(await judge(make, [limited], { call })).toMatchObject({ action: ALLOW, limited: [limited] });
  expect((await judge(make, [limited])).action).toBe(ASK);
  const free = grantOf("make x", { id: "grt_free" });
  expect(await judge(make, [limited, free], { call })).toMatchObject({ action: ALLOW, limited: [] });
});

test("a grant for more calls than its rule allows covers none", async () => {
  const limited = grantOf("make x", { times: 3, left: 1 });
  expect((await judge(make, [limited], { call, times: 3 })).action).toBe(ALLOW);
  expect((await judge(make, [limited], { call, times: 2 })).action).toBe(ASK);
  expect((await judge(make, [grantOf("make x")], { call, times: 2 })).action).toBe(ASK);
});

test("a grant for a command holds in its working directory", async () => {
  const here = grantOf("make x", { binding: "b1:/srv/a" });
  expect((await judge({ ...make, cwd: "/srv/a" }, [here])).action).toBe(ALLOW);
  expect((await judge({ ...make, cwd: "/srv/b" }, [here])).action).toBe(ASK);
  expect((await judge(make, [here])).action).toBe(ASK);
  expect((await judge({ ...make, cwd: "/srv/a" }, [grantOf("make x")])).action).toBe(ASK);
});

test("a grant serves the tool that it was given for, not another one of the same permission and form", async () => {
  expect((await judge(make, [grantOf("make x", { tool: "terminal" })])).action).toBe(ASK);
});

test("no grants answer a rule about a whole line, whether for its commands or for its text", async () => {
  const line = { permission: "bash", patterns: ["make x", "make y"], line: "make x && make y" };
  const grants = [grantOf("make x"), grantOf("make y"), grantOf("make x && make y")];
  expect((await judge(line, grants)).action).toBe(ALLOW);
  const rules = [{ permission: "bash", pattern: "make x && make y", action: ASK }];
  expect((await judge(line, grants, { rules })).action).toBe(ASK);
});

test("no grant answers what asks each time: a file of credentials, and everything while a policy file cannot be read", async () => {
  const [netrc, file] = ["/srv/.netrc", "/srv/notes"].map((pattern) => ({ permission: "read", patterns: [pattern] }));
  const grants = [grantOf("/srv/.netrc", { permission: "read" }), grantOf("/srv/notes", { permission: "read" })];
  const rules = [{ permission: "read", pattern: "*", action: ASK }];
  expect((await judge(file ?? make, grants, { rules })).action).toBe(ALLOW);
  expect((await judge(netrc ?? make, grants, { rules })).action).toBe(ASK);
  expect((await judge(file ?? make, grants, { rules, problem: "it is a directory" })).action).toBe(ASK);
});
