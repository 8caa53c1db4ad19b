import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Redis } from "ioredis";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { AnswerMethod, DecisionKind } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { serviceRoot } from "../../src/core/ids.ts";
import { clientOf, refusal } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { createService, type Service } from "../e2e/service.ts";
import { startRedis } from "../store/redis-server.ts";
import { startIdentityProvider } from "./identity-provider.ts";

const redis = await startRedis();
const client = new Redis(redis.url.replace("redis+unix://", ""));
const provider = await startIdentityProvider();
let [one, two]: [Service, Service] = [undefined, undefined] as never;

beforeAll(async () => {
  const create = () => createService({ settings: `store = "${redis.url}"\n` });
  [one, two] = [create(), create()];
  for (const service of [one, two]) {
    await service.start();
    await service.stop();
    const secret = join(service.data, "../client-secret");
    await writeFile(secret, "a-secret-for-tests\n");
    await service.configure(
      `store = "${redis.url}"\n[oidc.corp]\nissuer = "${provider.issuer}"\nclient_id = "toolgate"\n` +
        `client_secret_file = "${secret}"\nscopes = ["profile", "groups"]\n` +
        '[[role_map]]\nissuer = "corp"\ngroup = "sre"\nroles = ["approver"]\n[[role_map]]\nissuer = "corp"\ngroup = "screens"\nroles = ["watcher"]\n[group.oncall]\nclaims = ["corp:sre"]\n',
    );
    await service.start();
  }
  const redirectUris = ["http://127.0.0.1/", "http://127.0.0.1/auth/callback/corp"];
  await provider.do({ is: "client", redirectUris, logoutUri: `${two.url}/auth/logout/corp` });
});
afterAll(async () => {
  await Promise.all([one, two].map((service) => service.close()));
  provider.close();
  client.disconnect();
  await redis.stop();
});

const redirectUri = "http://127.0.0.1:9/";

/** Signs a person in at a replica. The flow may begin at another one. */
async function signIn(account: string, { begin = one, finish = one } = {}) {
  await provider.do({ is: "account", account, groups: ["sre"] });
  const { url, flow } = await clientOf(CredentialService, begin.url).beginSignIn({ provider: "corp", redirectUri });
  const { search } = await provider.follow(url, redirectUri);
  const request = { provider: "corp", redirectUri, flow, response: search.slice(1), label: "laptop" };
  const { token, credential } = await clientOf(CredentialService, finish.url).finishSignIn(request);
  return { token, id: credential?.id ?? "", personId: credential?.personId ?? "" };
}

const infoAt = ({ url }: Service, token: string) => clientOf(ToolService, url, token).getServerInfo({});

/** Makes a call at a replica that asks. */
async function ask({ url }: Service) {
  const token = "caller-token-for-tests";
  const { session } = await clientOf(SessionService, url, token).createSession({});
  const sessionId = session?.id ?? "";
  const call = { sessionId, tool: "bash", input: { command: "true" } };
  const { id } = await read(clientOf(ToolService, url, token).executeTool(call)).until("permissionAsked");
  return { sessionId, permissionId: id, reply: PermissionReply.ONCE };
}

/** Reads the session at the provider of a sign-in from the store. */
const sidOf = async (id: string) => JSON.parse((await client.hget("toolgate:{credentials}:credentials", id)) ?? "").sid;

test("a person signs in at one replica, answers at the other, and after a logout at the provider answers nowhere; the record names them", async () => {
  const ann = await signIn("ann", { begin: two, finish: one });
  const person = { id: ann.personId, issuer: provider.issuer, subject: "ann", name: "ann of corp", groups: ["oncall"] };
  const asked = await ask(one);
  await clientOf(PermissionService, two.url, ann.token).respondToPermission(asked);
  const admin = clientOf(PermissionService, one.url, "admin-token-for-tests");
  const { settled } = await admin.getPermission({ permissionId: asked.permissionId });
  expect(settled).toMatchObject({ person, method: AnswerMethod.SESSION });
  const { entries } = await admin.listDecisions({ sessionId: asked.sessionId });
  const settlements = entries.filter(({ record }) => record?.kind === DecisionKind.SETTLED);
  expect(settlements.map(({ record }) => record)).toMatchObject([{ person, method: AnswerMethod.SESSION }]);

  const watching = refusal(
    (async () => {
      for await (const _ of clientOf(PermissionService, one.url, ann.token).watchPermissions({}));
    })(),
  );
  await infoAt(one, ann.token);
  const again = [await ask(one), await ask(two)];
  await provider.do({ is: "logout", account: "ann", sid: await sidOf(ann.id) });
  const refused = { reason: "UNAUTHENTICATED" };
  // The provider's request went to the second replica; the first one learns it by news.
  expect(await refusal(infoAt(two, ann.token))).toMatchObject(refused);
  await vi.waitFor(async () => expect(await refusal(infoAt(one, ann.token))).toMatchObject(refused));
  expect(await watching).toMatchObject(refused);
  for (const [index, service] of [one, two].entries())
    expect(
      await refusal(clientOf(PermissionService, service.url, ann.token).respondToPermission(again[index] ?? asked)),
    ).toMatchObject(refused);
  const { entries: service } = await admin.listDecisions({ sessionId: serviceRoot });
  const reasons = service.flatMap(({ record }) => record?.decisions.map(({ reason }) => reason) ?? []);
  expect(reasons.filter((reason) => reason.startsWith("ann of corp"))).toEqual([
    `ann of corp (${provider.issuer}:ann) signed in for the first time`,
    `ann of corp (${provider.issuer}:ann): corp logged them out`,
  ]);
});

/** Makes all refreshes due, as twenty minutes do. */
async function makeDue() {
  const key = "toolgate:{refreshes}:refreshes";
  for (const [id, record] of Object.entries(await client.hgetall(key)))
    await client.hset(key, id, JSON.stringify({ ...JSON.parse(record), due: 1 }));
  await client.set("toolgate:{refreshes}:mark", "due");
}

const dueOf = async (id: string) =>
  JSON.parse((await client.hget("toolgate:{refreshes}:refreshes", id)) ?? '{"due":1}').due;

test("groups are read again; who left the group of a role answers nowhere, and who is back answers again", async () => {
  const bob = await signIn("bob");
  const records = await client.hgetall("toolgate:{refreshes}:refreshes");
  expect(Object.keys(records)).toContain(bob.id);
  for (const groups of [["staff"], ["sre"], ["sre", "staff"]]) {
    await provider.do({ is: "account", account: "bob", groups });
    await makeDue();
    await vi.waitFor(async () => {
      const { people } = await clientOf(PersonService, two.url, "admin-token-for-tests").listPeople({});
      expect(people.find(({ id }) => id === bob.personId)?.claims).toEqual(groups);
    });
    for (const service of [one, two]) {
      const info = infoAt(service, bob.token);
      if (groups.includes("sre"))
        expect(await info).toMatchObject({ roles: ["approver"], person: { groups: ["oncall"] } });
      else expect(await refusal(info)).toMatchObject({ reason: "UNAUTHENTICATED" });
    }
  }
});

test("a provider that is away ends no sign-in, and one that refuses a refresh ends it", async () => {
  const eve = await signIn("eve");
  await provider.do({ is: "away", isAway: true });
  await makeDue();
  await vi.waitFor(async () => expect(await dueOf(eve.id)).toBeGreaterThan(1));
  for (const service of [one, two]) expect((await infoAt(service, eve.token)).roles).toEqual(["approver"]);
  await provider.do({ is: "away", isAway: false });
  // Another provider at this address knows none of its refresh tokens.
  await provider.do({ is: "client", redirectUris: ["http://127.0.0.1/"], logoutUri: `${two.url}/auth/logout/corp` });
  await makeDue();
  for (const service of [one, two])
    await vi.waitFor(async () =>
      expect(await refusal(infoAt(service, eve.token))).toMatchObject({ reason: "UNAUTHENTICATED" }),
    );
});

test("groups whose reading the store interrupts are read again", async () => {
  const pat = await signIn("pat");
  const key = "toolgate:{people}:people";
  await client.rename(key, `${key}:away`);
  await client.set(key, "no table");
  await provider.do({ is: "account", account: "pat", groups: ["staff"] });
  await makeDue();
  await vi.waitFor(async () => expect(await dueOf(pat.id)).toBeGreaterThan(1));
  await client.rename(`${key}:away`, key);
  await makeDue();
  for (const service of [one, two])
    await vi.waitFor(async () =>
      expect(await refusal(infoAt(service, pat.token))).toMatchObject({ reason: "UNAUTHENTICATED" }),
    );
});

test("groups that a provider named more than four hours ago make no one a member, and end no sign-in", async () => {
  const kim = await signIn("kim");
  expect((await infoAt(one, kim.token)).person?.groups).toEqual(["oncall"]);
  const key = "toolgate:{people}:people";
  const record = JSON.parse((await client.hget(key, kim.personId)) ?? "");
  await client.hset(key, kim.personId, JSON.stringify({ ...record, claimed: Date.now() - 4 * 3_600_000 - 1 }));
  await client.set("toolgate:{people}:mark", "old");
  for (const service of [one, two])
    await vi.waitFor(async () =>
      expect(await infoAt(service, kim.token)).toMatchObject({ roles: ["approver"], person: { groups: [] } }),
    );
});

test("a device flow at the provider waits for the person at a replica, and signs them in at the other one", async () => {
  await provider.do({ is: "account", account: "dev", groups: ["sre", "screens"] });
  const { url, flow, userCode } = await clientOf(CredentialService, one.url).beginSignIn({ provider: "corp" });
  const finish = () => clientOf(CredentialService, two.url).finishSignIn({ provider: "corp", flow });
  expect(await finish()).toMatchObject({ isPending: true, token: "" });
  expect(await provider.enter(url, userCode)).toContain("Sign-in Success");
  const { token } = await finish();
  // The configuration lets no device flow approve.
  expect(await infoAt(one, token)).toMatchObject({ roles: ["watcher"], person: { name: "dev of corp" } });
});
