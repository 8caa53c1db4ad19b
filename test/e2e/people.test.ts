import { randomBytes } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { beforeAll, describe, expect, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { AnswerMethod, DecisionKind, PermissionOutcome } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { PermissionReply, type PermissionResponseSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { personOf } from "../../src/people/person.ts";
import { startAtTerminal, toolgate } from "../cli/toolgate.ts";
import { main } from "../main.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { clientOf, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { createService, type Service, startService } from "./service.ts";

const admin = "admin-token-for-tests";

const peopleAt = (service: Service) => ({
  credentials: (token: string) => clientOf(CredentialService, service.url, token),
  permissions: (token: string) => clientOf(PermissionService, service.url, token),
  people: (token: string) => clientOf(PersonService, service.url, token),
  infoOf: (token: string) => clientOf(ToolService, service.url, token).getServerInfo({}),
  /** Invites a person, who signs in. */
  async join(newPerson: string, name = "") {
    const { code } = await clientOf(CredentialService, service.url, admin).createCode({ newPerson });
    const { token, credential } = await clientOf(CredentialService, service.url).signIn({ code, name });
    return { token, id: credential?.personId ?? "" };
  },
  /** Makes a call that asks. */
  async ask(token = "caller-token-for-tests", tool = "bash", input: JsonObject = { command: "true" }) {
    const { session } = await clientOf(SessionService, service.url, token).createSession({});
    const sessionId = session?.id ?? "";
    const call = { sessionId, tool, input };
    const stream = read(clientOf(ToolService, service.url, token).executeTool(call));
    const request = await stream.until("permissionAsked");
    return { sessionId, permissionId: request.id, request };
  },
});

describe.each(["SQLite", "Redis"])("on %s", (store) => {
  let service: Service;
  let at: ReturnType<typeof peopleAt>;
  beforeAll(async () => {
    const redis: RedisServers | undefined = store === "Redis" ? await startRedis() : undefined;
    const keys = await mkdtemp(join(tmpdir(), "toolgate-people-"));
    await writeFile(join(keys, "ops"), `whsec_${randomBytes(32).toString("base64")}\n`);
    service = createService({
      settings:
        `public_url = "https://gate.example"\n${redis ? `store = "${redis.url}"\n` : ""}` +
        '[[token]]\nid = "both"\nroles = ["caller", "approver"]\nvalue = "both-token-for-tests"\n' +
        `[channel.ops]\nkind = "webhook"\nurl = "http://127.0.0.1:9/"\nsecret_file = "${keys}/ops"\ncontent = "full"\n` +
        '[[notify]]\npermission = "bash"\nchannels = ["ops"]\napprove = true\nafter = "10m"\n' +
        '[[notify]]\nchannels = ["ops"]\nafter = "10m"\n',
    });
    await service.start();
    at = peopleAt(service);
    return async () => {
      await service.close();
      await redis?.stop();
      await rm(keys, { recursive: true });
    };
  });

  test("an answer, its audit and the next reader name the person and the method", async () => {
    const ann = await at.join("Ann");
    const asked = await at.ask();
    const { sessionId, permissionId } = asked;
    await at.permissions(ann.token).respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    const person = { id: ann.id, issuer: "local", name: "Ann", subject: expect.stringMatching(/^ann-/) };
    const { settled } = await at.permissions(admin).getPermission({ permissionId });
    expect(settled).toMatchObject({ person, method: AnswerMethod.SESSION });
    const { entries } = await at.permissions(admin).listDecisions({ sessionId });
    const records = entries.flatMap(({ record }) => (record?.kind === DecisionKind.SETTLED ? [record] : []));
    expect(records).toMatchObject([{ person, method: AnswerMethod.SESSION, by: settled?.by }]);
  });

  test("a token of the configuration answers as itself, by the method TOKEN", async () => {
    const { sessionId, permissionId } = await at.ask();
    const token = "approver-token-for-tests";
    await at.permissions(token).respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    const { settled } = await at.permissions(admin).getPermission({ permissionId });
    expect(settled?.person).toMatchObject(personOf("token", "approver"));
    expect(settled?.method).toBe(AnswerMethod.TOKEN);
  });

  test("a code of a person adds a device to that person, and asks for no name", async () => {
    const ann = await at.join("", "Ann Other");
    expect((await at.infoOf(ann.token)).person).toMatchObject({ id: ann.id, name: "Ann Other" });
    const { code } = await at.credentials(ann.token).createCode({});
    const phone = await at.credentials("").signIn({ code, name: "Mallory", label: "phone" });
    expect(phone.credential?.personId).toBe(ann.id);
    const { people } = await at.people(ann.token).listPeople({});
    const record = people.find(({ id }) => id === ann.id);
    expect(record).toMatchObject({ person: { name: "Ann Other" }, invitedBy: "admin", revoked: 0 });
    expect(record?.devices).toMatchObject([{ label: "phone" }, { label: "terminal" }]);
    expect(record?.devices[1]?.lastSeen).toBeGreaterThan(record?.created ?? 0);
  });

  test("two persons of one name are two persons", async () => {
    const [one, other] = [await at.join("Sam"), await at.join("Sam")];
    expect(one.id).not.toBe(other.id);
  });

  test("only an admin invites, and a person changes no other one", async () => {
    const [ann, bob] = [await at.join("Ann"), await at.join("Bob")];
    const missing = { code: Code.PermissionDenied, reason: "ROLE_MISSING" };
    expect(await refusal(at.credentials(ann.token).createCode({ newPerson: "Ann again" }))).toMatchObject(missing);
    expect(await refusal(at.people(ann.token).revokePerson({ id: bob.id }))).toMatchObject(missing);
    expect(await refusal(at.people(ann.token).renamePerson({ id: bob.id, name: "Rob" }))).toMatchObject(missing);
    await at.people(bob.token).renamePerson({ id: bob.id, name: "Rob" });
    expect((await at.infoOf(bob.token)).person?.name).toBe("Rob");
    const unknown = { code: Code.NotFound, reason: "NO_SUCH_PERSON" };
    expect(await refusal(at.people(admin).revokePerson({ id: "prs_nobody" }))).toMatchObject(unknown);
  });

  test("a revoked person is refused on each device, with each open code, and on each stream", async () => {
    const ann = await at.join("Ann");
    const { code } = await at.credentials(ann.token).createCode({});
    const phone = await at.credentials("").signIn({ code });
    const left = await at.credentials(ann.token).createCode({});
    const stream = at.permissions(ann.token).watchPermissions({});
    const ended = refusal(
      (async () => {
        for await (const _ of stream);
      })(),
    );
    await at.people(admin).revokePerson({ id: ann.id });
    const refused = { code: Code.Unauthenticated };
    expect(await ended).toMatchObject(refused);
    for (const token of [ann.token, phone.token]) expect(await refusal(at.infoOf(token))).toMatchObject(refused);
    expect(await refusal(at.credentials("").signIn({ code: left.code }))).toMatchObject(refused);
  });

  test("the person who created an agent's token is named on its requests and parts, and may answer them", async () => {
    const ann = await at.join("Ann");
    const { token } = await at.credentials(ann.token).createToken({ roles: ["caller"] });
    const { sessionId, permissionId, request } = await at.ask(token);
    expect(request.person).toMatchObject({ id: ann.id, name: "Ann" });
    const { part } = await at.permissions(admin).getPermission({ permissionId });
    expect(part?.person).toMatchObject({ id: ann.id });
    await at.permissions(ann.token).respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
    expect((await at.ask()).request.person).toBeUndefined();
  });

  describe("a relay", () => {
    type Asked = Awaited<ReturnType<typeof at.ask>>;
    type Answer = MessageInitShape<typeof PermissionResponseSchema>;
    let relay: string;
    let ann: { token: string; id: string };
    const answer = ({ sessionId, permissionId, request }: Asked, fields: Answer = {}) =>
      at.permissions(relay).respondToPermission({
        ...{ sessionId, permissionId, reply: PermissionReply.ONCE, expectedDigest: request.digest },
        ...{ onBehalfOf: ann.id, channel: "ops" },
        ...fields,
      });
    beforeAll(async () => {
      ann = await at.join("Ann");
      relay = (await at.credentials(admin).createToken({ roles: ["relay"], label: "chat" })).token;
    });

    test("answers for a person, and the record names both and the channel", async () => {
      const [approved, rejected] = [await at.ask(), await at.ask()];
      await answer(approved);
      await answer(approved);
      await answer(rejected, { reply: PermissionReply.REJECT, expectedDigest: "", message: "not today" });
      for (const [{ permissionId, sessionId }, outcome] of [
        [approved, PermissionOutcome.ONCE],
        [rejected, PermissionOutcome.REJECT],
      ] as const) {
        const { settled } = await at.permissions(admin).getPermission({ permissionId });
        const fields = { person: { id: ann.id }, method: AnswerMethod.RELAY, by: expect.stringMatching(/^chat-/) };
        expect(settled).toMatchObject({ ...fields, channel: "ops", outcome });
        const { entries } = await at.permissions(admin).listDecisions({ sessionId });
        const records = entries.flatMap(({ record }) => (record?.kind === DecisionKind.SETTLED ? [record] : []));
        expect(records).toMatchObject([fields]);
      }
      const bob = await at.join("Bob");
      expect(await refusal(answer(approved, { onBehalfOf: bob.id }))).toMatchObject({
        reason: "ALREADY_ANSWERED",
        message: expect.stringContaining('was answered "once" by Ann (at ops)'),
      });
    });

    test.each<[why: string, fields: Answer, reason: string]>([
      ["names no person", { onBehalfOf: "", channel: "" }, "INVALID_MESSAGE"],
      ["names no channel", { channel: "" }, "INVALID_MESSAGE"],
      ["names a person who does not exist", { onBehalfOf: "prs_nobody" }, "NO_SUCH_PERSON"],
      ["names a token", { onBehalfOf: personOf("token", "approver").id }, "NO_SUCH_PERSON"],
      ["saves a grant", { reply: PermissionReply.ALWAYS }, "INVALID_MESSAGE"],
      ["edits the call", { input: { command: "false" } }, "INVALID_MESSAGE"],
      ["approves the whole call", { wholeCall: true }, "INVALID_MESSAGE"],
      ["names no digest", { expectedDigest: "" }, "INVALID_MESSAGE"],
      ["names another digest", { expectedDigest: "0".repeat(64) }, "ASK_CHANGED"],
      ["names a channel that may not approve", { channel: "phone" }, "METHOD_TOO_WEAK"],
    ])("that %s is refused", async (_, fields, reason) => {
      const asked = await at.ask();
      expect(await refusal(answer(asked, fields))).toMatchObject({ reason });
      expect((await at.permissions(admin).getPermission(asked)).settled).toBeUndefined();
    });

    test("approves only what its channel may approve and shows whole, and rejects anything", async () => {
      await writeFile(join(service.workspace, "deploy.sh"), "true\n");
      const unsent = await at.ask("caller-token-for-tests", "write", { filePath: "new.txt", content: "new" });
      const behindLink = await at.ask("caller-token-for-tests", "bash", { command: "sh deploy.sh" });
      const long = await at.ask("caller-token-for-tests", "bash", { command: `echo ${"a".repeat(13_000)}` });
      for (const [asked, reason] of [
        [unsent, "METHOD_TOO_WEAK"],
        [behindLink, "NOT_SHOWN"],
        [long, "NOT_SHOWN"],
      ] as const) {
        expect(await refusal(answer(asked))).toMatchObject({ reason });
        await answer(asked, { reply: PermissionReply.REJECT });
      }
    });

    test("answers no call of the person, of who made the relay, and for no person whose sign-ins ended", async () => {
      const { code } = await at.credentials("both-token-for-tests").createCode({});
      const { token, credential } = await at.credentials("").signIn({ code });
      const ownCall = { code: Code.PermissionDenied, reason: "OWN_CALL" };
      const reject = { reply: PermissionReply.REJECT };
      const onBehalfOf = credential?.personId ?? "";
      expect(await refusal(answer(await at.ask(token), { onBehalfOf }))).toMatchObject(ownCall);
      expect(await refusal(answer(await at.ask(token), { ...reject, onBehalfOf }))).toMatchObject(ownCall);
      expect(await refusal(answer(await at.ask(admin)))).toMatchObject(ownCall);
      const gone = await at.join("Gone");
      const { credentials } = await at.credentials(admin).listCredentials({});
      for (const { id, personId } of credentials)
        if (personId === gone.id) await at.credentials(admin).revokeCredential({ id });
      const noPerson = { code: Code.NotFound, reason: "NO_SUCH_PERSON" };
      expect(await refusal(answer(await at.ask(), { ...reject, onBehalfOf: gone.id }))).toMatchObject(noPerson);
      await at.people(admin).revokePerson({ id: gone.id });
      expect(await refusal(answer(await at.ask(), { ...reject, onBehalfOf: gone.id }))).toMatchObject(noPerson);
    });

    test("is made by an admin only, without another role, and no other token names a person", async () => {
      const roles = ["relay"];
      const missing = { reason: "ROLE_MISSING" };
      expect(await refusal(at.credentials(ann.token).createToken({ roles }))).toMatchObject(missing);
      const both = at.credentials(admin).createToken({ roles: ["relay", "caller"] });
      expect(await refusal(both)).toMatchObject({ reason: "INVALID_MESSAGE" });
      const { sessionId, permissionId } = await at.ask();
      const forged = { sessionId, permissionId, reply: PermissionReply.REJECT, onBehalfOf: ann.id, channel: "ops" };
      expect(await refusal(at.permissions(admin).respondToPermission(forged))).toMatchObject({
        reason: "INVALID_MESSAGE",
        message: expect.stringContaining("answers for itself"),
      });
    });
  });

  test("invitations, first sign-ins and revocations are in the audit of the service", async () => {
    const ann = await at.join("Ann of the audit");
    await at.people(admin).revokePerson({ id: ann.id });
    const { entries } = await at.permissions(admin).listDecisions({ sessionId: "ses_toolgate" });
    const reasons = entries.flatMap(({ record }) =>
      record?.kind === DecisionKind.PEOPLE ? record.decisions.map(({ reason }) => reason) : [],
    );
    const about = reasons.filter((reason) => reason.includes("Ann of the audit"));
    expect(about).toEqual([
      "Ann of the audit was invited",
      expect.stringMatching(/^Ann of the audit \(local:ann-of-the-audit-\w{6}\) signed in for the first time$/),
      expect.stringMatching(/was revoked$/),
    ]);
  });
});

test("a sign-in of a version without persons is a person after the upgrade, and answers none of its earlier calls", async () => {
  const service = await startService({
    settings: '[[token]]\nid = "both"\nroles = ["caller", "approver"]\nvalue = "both-token-for-tests"\n',
  });
  const at = peopleAt(service);
  const deviceCode = await at.credentials("both-token-for-tests").createCode({});
  const device = await at.credentials("").signIn({ code: deviceCode.code });
  const own = await at.ask(device.token);
  const ann = await at.join("Ann");
  const { code } = await at.credentials(ann.token).createCode({});
  const phone = await at.credentials("").signIn({ code, label: "phone" });
  const both = await at.credentials(ann.token).createToken({ roles: ["caller"] });
  await service.kill();
  // As the earlier version has stored them.
  const file = join(service.data, "credentials.json");
  const { credentials } = JSON.parse(await readFile(file, "utf8"));
  const [deviceRecord, first, second, third] = credentials;
  const earlier = [
    { ...deviceRecord, personId: undefined },
    { ...first, label: "Chrome on Linux", personId: undefined, lineage: undefined },
    { ...second, personId: undefined, lineage: [first.id] },
    { ...third, lineage: [third.id, first.id] },
  ];
  await writeFile(file, JSON.stringify({ credentials: earlier }));
  await service.start();
  const person = personOf("local", first.id, "Chrome on Linux");
  for (const token of [ann.token, phone.token]) expect((await at.infoOf(token)).person).toMatchObject(person);
  const { people } = await at.people(ann.token).listPeople({});
  expect(people.find(({ id }) => id === person.id)?.devices).toHaveLength(2);
  const { request } = await at.ask(both.token);
  expect(request.person).toMatchObject(person);
  const ownCall = { code: Code.PermissionDenied, reason: "OWN_CALL" };
  for (const { sessionId, permissionId } of [own, await at.ask(device.token), await at.ask("both-token-for-tests")])
    for (const token of [device.token, "both-token-for-tests"])
      expect(
        await refusal(
          at.permissions(token).respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE }),
        ),
      ).toMatchObject(ownCall);
});

test("the operator of the machine invites a person, and the command line names who answered and revokes them", async () => {
  const service = await startService();
  const at = peopleAt(service);
  const env = { HOME: join(service.data, "home"), TOOLGATE_URL: service.url };
  const operator = ["--data", service.data];
  const invited = await main(["people", "invite", "Ann", "--json", ...operator], env);
  expect(invited).toMatchObject({ code: 0 });
  const login = await toolgate(["login", JSON.parse(invited.stdout).code], env);
  expect(login).toMatchObject({ code: 0, stdout: expect.stringMatching(/signed in at \S+ as Ann \(\S+\), stored in/) });
  const token = await at.credentials(admin).createToken({ roles: ["caller"] });
  const { permissionId, sessionId } = await at.ask(token.token);
  expect(await toolgate(["reply", permissionId, "once"], env)).toMatchObject({ code: 0 });
  const late = await toolgate(["reply", permissionId, "reject", "--session", sessionId], env);
  expect(late.stderr).toContain('was answered "once" by Ann');
  const { stdout } = await toolgate(["people"], env);
  expect(stdout).toMatch(
    /^Ann {2}(prs_\w{32})\n {2}local:ann-\w{6}; invited by toolgate-people-\w{8}\n {2}\S+ {2}\S+@\S+ {2}last seen at/m,
  );
  const id = /prs_\w{32}/.exec(stdout)?.[0] ?? "";
  const shown = await main(["people", "invite", ...operator], env);
  expect(shown.stdout).toContain("this address reaches the service from this machine only");
  const nameless = await main(["people", "invite", "--json", ...operator], env);
  const kim = startAtTerminal(["login", JSON.parse(nameless.stdout).code], { ...env, HOME: join(service.data, "kim") });
  await kim.sees("your name");
  kim.child.stdin?.write("Kim\n");
  expect((await kim.finished).stdout).toContain("as Kim (");
  const other = await at.join("Bob");
  // A token of the configuration that names a person answers as that one, and ends with them.
  const { person: bob } = await at.infoOf(other.token);
  const bobs = `[[token]]\nid = "bob"\nroles = ["approver"]\nvalue = "bobs-token-for-tests"\nperson = "local:${bob?.subject}"\n`;
  await service.configure(bobs);
  process.kill(service.pid ?? 0, "SIGHUP");
  const bobsToken = () => at.infoOf("bobs-token-for-tests");
  await expect
    .poll(() => bobsToken().catch(() => ({})))
    .toMatchObject({ principal: "bob", person: { id: other.id, name: "Bob" } });
  const { sessionId: second, permissionId: byToken } = await at.ask(token.token);
  await at
    .permissions("bobs-token-for-tests")
    .respondToPermission({ sessionId: second, permissionId: byToken, reply: 1 });
  const afterToken = await toolgate(["reply", byToken, "reject", "--session", second], env);
  expect(afterToken.stderr).toContain('was answered "once" by Bob (with a token)');
  expect(await main(["people", "rename", other.id, "Rob", ...operator], env)).toMatchObject({ code: 0 });
  expect(await main(["people", "revoke", id, ...operator], env)).toMatchObject({
    code: 0,
    stdout: expect.stringContaining("revoked at"),
  });
  expect(await toolgate(["people"], env)).toMatchObject({ code: 6 });
  const { credentials } = await at.credentials(admin).listCredentials({});
  const used = credentials.filter(({ label }) => label === "toolgate people");
  expect(used).toHaveLength(5);
  expect(used.every(({ revoked }) => revoked > 0)).toBe(true);
  await at.people(admin).revokePerson({ id: other.id });
  expect((await refusal(bobsToken())).code).toBe(Code.Unauthenticated);
});
