import { Code } from "@connectrpc/connect";
import { beforeAll, describe, expect, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import type { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod, DecisionKind } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { toolgate } from "../cli/toolgate.ts";
import { startRedis } from "../store/redis-server.ts";
import { clientOf, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { createService, type Service, startService } from "./service.ts";

const admin = "admin-token-for-tests";
const dayMs = 86_400_000;

describe.each(["SQLite", "Redis"])("on %s", (store) => {
  let service: Service;
  let rules: string;
  const noOne = { id: "", token: "" };
  let [ann, bob, boss] = [noOne, noOne, noOne];
  const people = (token = ann.token) => clientOf(PersonService, service.url, token);
  const permissions = (token: string) => clientOf(PermissionService, service.url, token);
  const fields = (more = {}) => ({ personId: ann.id, to: bob.id, until: Date.now() + dayMs, permissions: [], ...more });

  beforeAll(async () => {
    const redis = store === "Redis" ? await startRedis() : undefined;
    const settings = redis ? `store = "${redis.url}"\n` : "";
    service = createService({ settings });
    await service.start();
    const credentials = (token?: string) => clientOf(CredentialService, service.url, token);
    const join = async (request: { newPerson?: string }) => {
      const { code } = await credentials(admin).createCode(request);
      const { token, credential } = await credentials().signIn({ code });
      return { token, id: credential?.personId ?? "" };
    };
    [ann, bob, boss] = [await join({ newPerson: "Ann" }), await join({ newPerson: "Bob" }), await join({})];
    const { people: all } = await people().listPeople({});
    const subject = all.find(({ id }) => id === ann.id)?.person?.subject;
    await service.stop();
    rules = `${settings}[group.sre]\nmembers = ["local:${subject}"]\n[[approval]]\npermission = "bash"\nfrom = ["sre"]\n`;
    await service.configure(rules);
    await service.start();
    return async () => {
      await service.close();
      await redis?.stop();
    };
  });

  async function ask() {
    const token = "caller-token-for-tests";
    const { session } = await clientOf(SessionService, service.url, token).createSession({});
    const call = { sessionId: session?.id ?? "", callId: "call_1", tool: "bash", input: { command: "true" } };
    const stream = read(clientOf(ToolService, service.url, token).executeTool(call));
    const { id: permissionId, sessionId } = await stream.until("permissionAsked");
    return { sessionId, permissionId, reply: PermissionReply.ONCE };
  }

  test("a delegate answers for who named them until the delegation is removed, and the audit says so", async () => {
    const asked = await ask();
    const refused = { code: Code.PermissionDenied, reason: "NOT_ELIGIBLE" };
    expect(await refusal(permissions(bob.token).respondToPermission(asked))).toMatchObject(refused);
    const until = Date.now() + dayMs;
    const { person } = await people().putDelegate(fields({ until, permissions: ["bash"] }));
    const delegate = { id: ann.id, to: bob.id, until, permissions: ["bash"], method: AnswerMethod.FRESH_SESSION };
    expect(person?.delegate).toMatchObject(delegate);
    const { people: all } = await people(bob.token).listPeople({});
    expect(all.flatMap((each) => (each.delegate ? [each.id, each.delegate.to] : []))).toEqual([ann.id, bob.id]);
    const read = async (token: string) => (await permissions(token).getPermission(asked)).permission;
    const behalf = [{ id: ann.id, groups: ["sre"] }];
    expect(await read(bob.token)).toMatchObject({ onBehalfOf: behalf });
    for (const token of [ann.token, boss.token, admin]) expect(await read(token)).toMatchObject({ onBehalfOf: [] });
    const { permissions: listed } = await permissions(bob.token).listPermissions({ sessionId: asked.sessionId });
    expect(listed).toMatchObject([{ onBehalfOf: behalf }]);
    for await (const { event } of permissions(bob.token).watchPermissions({ sessionId: asked.sessionId })) {
      if (event === undefined) continue;
      expect(event.event).toMatchObject({ case: "permissionAsked", value: { onBehalfOf: behalf } });
      break;
    }
    const asBob = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: bob.token };
    const shown = await toolgate(["asks"], asBob);
    expect(shown.stdout).toContain("your approval counts for Ann, for this call only");
    expect(shown.stdout).not.toMatch(/^ *always /m);
    const always = await toolgate(["reply", asked.permissionId, "always"], asBob);
    expect(always).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("nothing is saved: your approval counts"),
    });
    await permissions(bob.token).respondToPermission(asked);
    expect(await read(bob.token)).toMatchObject({ onBehalfOf: [] });
    const { settled } = await permissions(admin).getPermission(asked);
    const vote = { person: { id: bob.id, groups: [] }, onBehalfOf: [{ id: ann.id, groups: ["sre"] }] };
    expect(settled?.votes).toMatchObject([vote]);
    const { part } = await clientOf(ToolService, service.url, admin).getToolPart({ ...asked, callId: "call_1" });
    expect(part?.state.case).not.toBe("error");

    expect((await people().removeDelegate({ personId: ann.id })).person?.delegate).toBeUndefined();
    await people().removeDelegate({ personId: ann.id });
    expect(await refusal(permissions(bob.token).respondToPermission(await ask()))).toMatchObject(refused);
    const { entries } = await permissions(admin).listDecisions({ sessionId: "ses_toolgate" });
    const records = entries.flatMap(({ record }) => (record?.kind === DecisionKind.PEOPLE ? [record] : []));
    expect(records.slice(-2).map(({ person: by, decisions }) => [by?.id, decisions[0]?.reason])).toEqual([
      [ann.id, expect.stringMatching(/^Ann \(local:ann-.+: Bob \(local:bob-.+ answers for them until 20.+, for bash$/)],
      [ann.id, expect.stringMatching(/: no one answers for them any more$/)],
    ]);
    const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: admin };
    const { code, stdout } = await toolgate(["audit", "verify", "--session", asked.sessionId], environment);
    expect([code, stdout]).toEqual([0, expect.stringContaining(asked.sessionId)]);
  });

  test.runIf(store === "Redis")("a delegate named or removed at one replica is so at another one", async () => {
    const other = await startService({ settings: rules, flags: ["--workspace", service.workspace] });
    const there = clientOf(PermissionService, other.url, bob.token);
    const counts = async (asked: Awaited<ReturnType<typeof ask>>) =>
      (await there.getPermission(asked)).permission?.onBehalfOf.map(({ id }) => id);
    const first = await ask();
    await people().putDelegate(fields());
    await expect.poll(() => counts(first)).toEqual([ann.id]);
    await there.respondToPermission(first);
    const vote = { person: { id: bob.id }, onBehalfOf: [{ id: ann.id }] };
    expect((await permissions(admin).getPermission(first)).settled?.votes).toMatchObject([vote]);
    const { part } = await clientOf(ToolService, service.url, admin).getToolPart({ ...first, callId: "call_1" });
    expect(part?.state.case).not.toBe("error");

    const second = await ask();
    expect(await counts(second)).toEqual([ann.id]);
    await people().removeDelegate({ personId: ann.id });
    await expect.poll(() => counts(second)).toEqual([]);
    expect(await refusal(there.respondToPermission(second))).toMatchObject({ reason: "NOT_ELIGIBLE" });
  });

  test("a client whose clock is ahead names a delegate for 30 days", async () => {
    const { person } = await people().putDelegate(fields({ until: Date.now() + 30 * dayMs + 60_000 }));
    const { until = 0, created = 0 } = person?.delegate ?? {};
    expect(until - created).toBe(30 * dayMs);
    await people().removeDelegate({ personId: ann.id });
  });

  test("the command line names the delegate of who is signed in, shows them, and ends it", async () => {
    const run = async (...words: string[]) =>
      await toolgate(["people", ...words], { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: ann.token });
    const named = await run("delegate", bob.id, "--for", "2d", "--permission", "bash", "--permission", "edit");
    expect(named.stdout).toMatch(new RegExp(`away: ${bob.id} answers until .+ bash, edit\\n`));
    const [{ delegate } = {}] = (await people().listPeople({})).people.filter(({ id }) => id === ann.id);
    expect(Math.round(((delegate?.until ?? 0) - (delegate?.created ?? 0)) / dayMs)).toBe(2);
    expect((await run()).stdout).toContain(`away: ${bob.id}`);
    expect((await run("delegate")).stdout).not.toContain("away:");
    expect(await run("delegate", bob.id, "--for", "31d")).toMatchObject({
      code: 2,
      stderr: expect.stringContaining("at most 30 days from now"),
    });
  });

  test.each<[what: string, more: () => object, token: () => string, reason: keyof typeof ErrorReason]>([
    ["for themselves", () => ({ to: ann.id }), () => ann.token, "INVALID_MESSAGE"],
    ["for more than 30 days", () => ({ until: Date.now() + 31 * dayMs }), () => ann.token, "INVALID_MESSAGE"],
    ["until a time that has passed", () => ({ until: Date.now() - 1 }), () => ann.token, "INVALID_MESSAGE"],
    ["until no time", () => ({ until: Number.NaN }), () => ann.token, "INVALID_MESSAGE"],
    ["who does not exist", () => ({ to: "prs_nobody" }), () => ann.token, "NO_SUCH_PERSON"],
    ["of another person", () => ({}), () => bob.token, "ROLE_MISSING"],
    ["of an admin's own choice: themselves", () => ({ to: boss.id }), () => boss.token, "NOT_ELIGIBLE"],
    ["by a token", () => ({}), () => admin, "METHOD_TOO_WEAK"],
    ["by an agent", () => ({}), () => "caller-token-for-tests", "ROLE_MISSING"],
  ])("a delegate %s is refused", async (_, more, token, reason) => {
    expect(await refusal(people(token()).putDelegate(fields(more())))).toMatchObject({ reason });
    expect((await people().listPeople({})).people.some(({ delegate }) => delegate)).toBe(false);
  });
});
