import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create, fromBinary, fromJsonString, toBinary, toJsonString } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import {
  AnswerMethod,
  AuditEntrySchema,
  type DecisionRecord,
  DecisionRecordSchema,
  type PasskeyReceipt,
  PermissionOutcome,
  type SignedAnswer,
  SignedAnswerSchema,
} from "../../gen/opencode/tool/v1/permission_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import {
  PermissionReply,
  type PermissionRequest,
  type PermissionResponse,
} from "../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { canonicalJson } from "../../src/core/json.ts";
import { shownText } from "../../src/view/view-lines.ts";
import { toolgate } from "../cli/toolgate.ts";
import { answer as answerPage, useBrowsers } from "../console/browser.ts";
import { sticksOut } from "../console/findings.ts";
import { type Assertion, createAuthenticator } from "../people/authenticator.ts";
import { freePorts, type RedisServers, startRedis } from "../store/redis-server.ts";
import { clientOf, refusal } from "./clients.ts";
import { read } from "./reading.ts";
import { createService, type Service } from "./service.ts";

const browsers = useBrowsers();
const admin = "admin-token-for-tests";
let redis: RedisServers;
let workspace = "";
let origin = "";
let replicas: [Service, Service];

beforeAll(async () => {
  redis = await startRedis();
  workspace = await realpath(await mkdtemp(join(tmpdir(), "toolgate-passkeys-")));
  const [port] = await freePorts(1);
  origin = `http://localhost:${port}`;
  const rule = (pattern: string, more: string) =>
    `[[approval]]\npermission = "bash"\npattern = "${pattern}"\nmethod = "passkey"\n${more}`;
  const settings =
    `store = "${redis.url}"\npublic_url = "${origin}"\n` +
    rule("echo deploy *", "approve = 2\n") +
    rule("echo one *", "") +
    '[[approval]]\npermission = "bash"\npattern = "echo fresh *"\nmethod = "fresh_session"\n' +
    '[[approval]]\npermission = "external_directory"\nmethod = "passkey"\n';
  const create = (...flags: string[]) => createService({ settings, flags: ["--workspace", workspace, ...flags] });
  replicas = [create("--listen", `127.0.0.1:${port}`), create()];
  await Promise.all(replicas.map((replica) => replica.start()));
});
afterAll(async () => {
  await Promise.all(replicas.map((replica) => replica.close()));
  await redis.stop();
  await rm(workspace, { recursive: true, force: true });
});

/** Invites a person, who signs in. */
async function invite(name: string, { url } = replicas[0]) {
  const { code } = await clientOf(CredentialService, url, admin).createCode({ newPerson: name });
  const { token, credential } = await clientOf(CredentialService, url).signIn({ code });
  return { token, id: credential?.personId ?? "", key: createAuthenticator(origin) };
}
type Member = Awaited<ReturnType<typeof invite>>;

/** Invites a person, who signs in and adds a passkey. */
async function enrol(name: string): Promise<Member> {
  const member = await invite(name);
  const people = clientOf(PersonService, replicas[0].url, member.token);
  const { nonce } = await people.beginPasskey({});
  const { person } = await people.finishPasskey({ ...member.key.register(nonce), label: "phone" });
  expect(person?.passkeys).toMatchObject([{ label: "phone", used: 0 }]);
  return member;
}

/** Makes a call that asks. */
async function ask(command: string) {
  const { url } = replicas[0];
  const { session } = await clientOf(SessionService, url, "caller-token-for-tests").createSession({});
  const call = { sessionId: session?.id ?? "", tool: "bash", input: { command } };
  const stream = read(clientOf(ToolService, url, "caller-token-for-tests").executeTool(call));
  return { request: await stream.until("permissionAsked"), end: () => stream.end() };
}

const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");
type Response = Partial<
  Pick<PermissionResponse, "reply" | "input" | "offerId" | "expires" | "times" | "reason" | "replyId" | "wholeCall">
> & {
  receipt?: PasskeyReceipt;
};

/** Returns the answer that a member signs when they send this response. */
async function statementOf(member: Member, request: PermissionRequest, response: Response): Promise<SignedAnswer> {
  const { reply, input, offerId = "", expires = 0, times = 0, reason = "" } = response;
  const { url } = replicas[0];
  const { permission } = await clientOf(PermissionService, url, admin).getPermission({ permissionId: request.id });
  const earlier = permission?.votes.find(({ person }) => person?.id === member.id);
  const { storeId } = await clientOf(ToolService, url, member.token).getServerInfo({});
  return create(SignedAnswerSchema, {
    ...{ permissionId: request.id, viewDigest: request.view?.digest ?? "", shownDigest: sha256(shownText(request)) },
    outcome: input
      ? PermissionOutcome.EDITED
      : reply === PermissionReply.ALWAYS
        ? PermissionOutcome.ALWAYS
        : PermissionOutcome.ONCE,
    ...{ offerId, offerText: request.offers.find(({ id }) => id === offerId)?.text ?? "", expires, times, reason },
    editedDigest: input ? sha256(canonicalJson(input)) : "",
    earlier: earlier ? `${earlier.answerDigest} ${earlier.time}` : "",
    ...{ personId: member.id, storeId },
  });
}

const nonceFor = async ({ token }: Member, { url }: Pick<Service, "url"> = replicas[0]) =>
  (await clientOf(PermissionService, url, token).beginStepUp({})).nonce;

/** Sends a response as a member, by default one with a good receipt. */
async function answer(member: Member, request: PermissionRequest, given: Response = {}, service = replicas[0]) {
  const response = { reply: PermissionReply.ONCE, ...given };
  const receipt =
    given.receipt ?? member.key.sign(await nonceFor(member, service), await statementOf(member, request, response));
  const target = { sessionId: request.sessionId, permissionId: request.id, expectedDigest: request.digest };
  await clientOf(PermissionService, service.url, member.token).respondToPermission({ ...target, ...response, receipt });
  return receipt;
}

test("two people at two replicas approve one deploy with passkeys while a third is refused, and the audit verifies it offline", async () => {
  const [ann, bob] = [await enrol("Ann"), await enrol("Bob")];
  const cem = await invite("Cem");
  const { request, end } = await ask("echo deploy production");
  expect(request.need).toMatchObject({ method: AnswerMethod.PASSKEY, all: [{ approve: 2 }] });
  const target = { sessionId: request.sessionId, permissionId: request.id, reply: PermissionReply.ONCE };
  const unproven = ({ url }: Service, token: string) =>
    refusal(clientOf(PermissionService, url, token).respondToPermission(target));
  expect(await unproven(replicas[1], cem.token)).toMatchObject({
    reason: "METHOD_TOO_WEAK",
    metadata: { method: "PASSKEY" },
  });
  expect(await unproven(replicas[0], ann.token)).toMatchObject({ reason: "METHOD_TOO_WEAK" });
  expect(await unproven(replicas[1], "approver-token-for-tests")).toMatchObject({ reason: "NOT_ELIGIBLE" });
  await answer(ann, request, { reason: "planned" }, replicas[1]);
  expect(await refusal(answer(cem, request))).toMatchObject({ reason: "METHOD_TOO_WEAK" });
  await answer(bob, request, {}, replicas[0]);
  expect((await end()).state.value).toMatchObject({ output: "deploy production\n" });

  const at = { TOOLGATE_URL: replicas[1].url, TOOLGATE_TOKEN: admin };
  const exported = await toolgate(["audit", "export", "--session", request.sessionId], at);
  const [file, people] = [join(workspace, "audit.jsonl"), join(workspace, "people.jsonl")];
  await writeFile(file, exported.stdout);
  await writeFile(people, (await toolgate(["people", "--json"], at)).stdout);
  const verified = await toolgate(["audit", "verify", file, "--people", people]);
  expect(verified).toMatchObject({
    code: 0,
    stderr: expect.stringMatching(/Ann {2}1 signed with the passkey [0-9a-f]{16}/),
  });
  expect(verified.stderr).toMatch(/Bob {2}1 signed with the passkey/);
  // Who can write to the store can write the whole chain again, and no receipt.
  const outcome = async (change: (records: DecisionRecord[]) => void) => {
    await writeFile(file, rewritten(exported.stdout, change));
    const { code, stderr } = await toolgate(["audit", "verify", file]);
    return [code, stderr];
  };
  const bobs = (records: DecisionRecord[]) => records.findLast(({ receipt }) => receipt);
  const anns = (records: DecisionRecord[]) => records.find(({ receipt }) => receipt);
  const voteOf = (record: DecisionRecord | undefined) => record?.vote ?? record?.settled?.votes.at(-1);
  const asSession = (record: DecisionRecord | undefined) => {
    if (record === undefined) throw new Error("no record");
    const method = AnswerMethod.SESSION;
    for (const each of [record, voteOf(record)]) Object.assign(each ?? {}, { method, receipt: undefined });
    return record;
  };
  const tampering: [(records: DecisionRecord[]) => void, why: string][] = [
    [(all) => asSession(bobs(all)), "needs 2 approvals by passkey at least"],
    [(all) => asSession(anns(all)), "needs 2 approvals by passkey at least"],
    [(all) => bobs(all)?.settled?.votes.shift(), "needs 2 approvals by passkey at least"],
    [(all) => Object.assign(asSession(bobs(all)), { needs: [] }), "needs 2 approvals by passkey at least"],
    [(all) => asSession(anns(all)).needs.map(({ need }) => Object.assign(need ?? {}, { method: 4 })), "is not what"],
    [(all) => delete bobs(all)?.receipt, "has no receipt"],
    [(all) => Object.assign(bobs(all) ?? {}, { receipt: anns(all)?.receipt }), "for another person"],
    [(all) => Object.assign(bobs(all) ?? {}, { person: anns(all)?.person }), "for another person"],
    [(all) => Object.assign(anns(all) ?? {}, { permissionIds: ["per_other"] }), "for another permission request"],
    [(all) => Object.assign(voteOf(anns(all)) ?? {}, { outcome: PermissionOutcome.ALWAYS }), "for another outcome"],
    [(all) => Object.assign(voteOf(anns(all)) ?? {}, { reason: "urgent" }), "for another reason"],
    [(all) => Object.assign(voteOf(anns(all)) ?? {}, { viewDigest: "0" }), "for another view"],
    [(all) => Object.assign(voteOf(anns(all)) ?? {}, { expires: 1 }), "for another offer"],
    [(all) => Object.assign(voteOf(anns(all)) ?? {}, { times: 1 }), "for another offer"],
    [(all) => Object.assign(anns(all)?.receipt?.answer ?? {}, { storeId: "another" }), "is not valid"],
    [(all) => Object.assign(anns(all)?.receipt ?? {}, { signature: randomBytes(70) }), "is not valid"],
    [(all) => Object.assign(anns(all)?.receipt ?? {}, { publicKey: bobs(all)?.receipt?.publicKey }), "is not valid"],
    [
      (all) =>
        all.splice(
          all.findIndex(({ vote }) => vote),
          1,
        ),
      "no record has the receipt",
    ],
  ];
  expect(await outcome(() => {})).toMatchObject([0, expect.any(String)]);
  for (const [change, why] of tampering) expect(await outcome(change)).toEqual([1, expect.stringContaining(why)]);
  await writeFile(file, exported.stdout);
  await writeFile(people, "");
  const unknown = await toolgate(["audit", "verify", file, "--people", people]);
  expect(unknown).toMatchObject({ code: 1, stderr: expect.stringContaining("is no passkey of Ann") });
});

/** Writes an exported chain again, with other records: each link is right. */
function rewritten(exported: string, change: (records: DecisionRecord[]) => void): string {
  const entries = exported
    .trim()
    .split("\n")
    .map((line) => fromJsonString(AuditEntrySchema, line));
  const records = entries.map(({ content }) => fromBinary(DecisionRecordSchema, content));
  change(records);
  let previous = "";
  return records
    .map((record, at) => {
      const content = toBinary(DecisionRecordSchema, record);
      const { time = 0, rootSessionId = "" } = entries[at] ?? {};
      const link = [previous, at + 1, time, createHash("sha256").update(content).digest("hex")].join("\n");
      const hash = createHash("sha1").update(link).digest("hex");
      const entry = create(AuditEntrySchema, { seq: BigInt(at + 1), time, rootSessionId, previous, hash, content });
      previous = hash;
      return toJsonString(AuditEntrySchema, entry);
    })
    .join("\n");
}

/** Replaces fields of what is signed. */
const signs = (fields: Partial<SignedAnswer>) => (answer: SignedAnswer) =>
  create(SignedAnswerSchema, { ...answer, ...fields });
const says = (clientData: Record<string, unknown>) => ({ clientData });

interface Forgery {
  /** Fields that are signed in place of those of the answer. */
  signed?: (answer: SignedAnswer) => SignedAnswer;
  /** Parts of the assertion that the authenticator or the browser makes otherwise. */
  change?: Partial<Assertion>;
  /** The answer that is signed, where another one is sent. */
  meant?: Response;
  sent?: Response;
  receipt?: (receipt: PasskeyReceipt) => Partial<PasskeyReceipt>;
}

const flip = (bytes: Uint8Array, at: number) => Buffer.from(bytes).fill((bytes[at] ?? 0) ^ 1, at, at + 1);
const edit = (command: string) => ({ reply: PermissionReply.ONCE, input: { command } });
const hourLater = Date.now() + 3_600_000;
const none = new Uint8Array();

test("of forged and replayed receipts none is accepted, whatever differs", async () => {
  const [ann, bob] = [await enrol("Ann"), await enrol("Bob")];
  const { request } = await ask("echo one forged");
  const { request: other } = await ask("echo one other");
  const [first = "", second = ""] = request.offers.map(({ id }) => id);
  const always = (offerId: string, expires = 0) => ({ reply: PermissionReply.ALWAYS, offerId, expires });
  const [bobs, ofPasskey] = [
    await nonceFor(bob),
    await clientOf(PersonService, replicas[0].url, ann.token).beginPasskey({}),
  ];
  const old = await nonceFor(ann);
  const forgeries: Record<string, Forgery> = {
    "another request": { signed: signs({ permissionId: other.id }) },
    "another view": { signed: signs({ viewDigest: "0".repeat(64) }) },
    "another page": { signed: signs({ shownDigest: sha256(shownText({ ...request, display: ["echo harmless"] })) }) },
    "another outcome": { signed: signs({ outcome: PermissionOutcome.ALWAYS }) },
    "a rejection": { signed: signs({ outcome: PermissionOutcome.REJECT }) },
    "an offer for once": { signed: signs({ offerId: first }) },
    "the text of another offer": { meant: always(first), sent: always(first), signed: signs({ offerText: "less" }) },
    "an end": { signed: signs({ expires: hourLater }) },
    "another reason": { signed: signs({ reason: "planned" }) },
    "an edit of which it is none": { signed: signs({ editedDigest: "0".repeat(64) }) },
    "an earlier vote that there is none": { signed: signs({ earlier: "x 1" }) },
    "another person": { signed: signs({ personId: bob.id }) },
    "another store": { signed: signs({ storeId: "another" }) },
    "once, sent as always": { sent: always(first) },
    "always, sent as once": { meant: always(first) },
    "a narrow offer, sent as a wide one": { meant: always(first), sent: always(second) },
    "an hour, sent without end": { meant: always(first, hourLater), sent: always(first) },
    "no end, sent as an hour": { meant: always(first), sent: always(first, hourLater) },
    "five calls, sent as any number": { meant: { ...always(first), times: 5 }, sent: always(first) },
    "any number, sent as five calls": { meant: always(first), sent: { ...always(first), times: 5 } },
    "five calls, sent as fifty": { meant: { ...always(first), times: 5 }, sent: { ...always(first), times: 50 } },
    "no reason, sent with one": { sent: { reason: "planned" } },
    "a reason, sent without": { meant: { reason: "planned" } },
    "an approval, sent as an edit": { sent: edit("echo one changed") },
    "an edit, sent as an approval": { meant: edit("echo one changed") },
    "an edit, sent as another one": { meant: edit("echo one a"), sent: edit("echo one b") },
    "an edit that changes nothing": { meant: edit("echo one forged"), sent: edit("echo one forged") },
    "the type of a registration": { change: says({ type: "webauthn.create" }) },
    "the type of a payment": { change: says({ type: "payment.get" }) },
    "no type": { change: says({ type: undefined }) },
    "an empty challenge": { change: says({ challenge: "" }) },
    "the nonce as challenge": { change: says({ challenge: Buffer.from(old).toString("base64url") }) },
    "another origin": { change: says({ origin: "https://evil.example" }) },
    "another port": { change: says({ origin: "http://localhost:1" }) },
    "another scheme": { change: says({ origin: origin.replace("http", "https") }) },
    "a longer host": { change: says({ origin: `${origin}.evil.example` }) },
    "a frame of another page": { change: says({ crossOrigin: true }) },
    "a frame with its page": { change: says({ crossOrigin: true, topOrigin: "https://evil.example" }) },
    "another domain": { change: { rpId: "evil.example" } },
    "a domain above": { change: { rpId: "host" } },
    "no presence": { change: { flags: 0x04 } },
    "no verification": { change: { flags: 0x01 } },
    neither: { change: { flags: 0 } },
    "another signature": { receipt: ({ signature }) => ({ signature: flip(signature, 20) }) },
    "no signature": { receipt: () => ({ signature: none }) },
    "a shorter signature": { receipt: ({ signature }) => ({ signature: signature.subarray(0, 40) }) },
    "changed words of the browser": { receipt: ({ clientDataJson }) => ({ clientDataJson: flip(clientDataJson, 2) }) },
    "no words of the browser": { receipt: () => ({ clientDataJson: none }) },
    "changed data": { receipt: ({ authenticatorData }) => ({ authenticatorData: flip(authenticatorData, 36) }) },
    "cut data": { receipt: ({ authenticatorData }) => ({ authenticatorData: authenticatorData.subarray(0, 36) }) },
    "no data": { receipt: () => ({ authenticatorData: none }) },
    "an unknown passkey": { receipt: () => ({ credentialId: randomBytes(32) }) },
    "no passkey": { receipt: () => ({ credentialId: none }) },
    "the passkey of another person": { receipt: () => ({ credentialId: bob.key.credentialId }) },
    "a key that nobody stored": {
      receipt: () => ({
        ...createAuthenticator(origin).sign(old, signs({})(create(SignedAnswerSchema))),
        credentialId: ann.key.credentialId,
      }),
    },
    "another nonce": { receipt: () => ({ nonce: old }) },
    "a nonce of no service": { receipt: () => ({ nonce: randomBytes(54) }) },
    "no nonce": { receipt: () => ({ nonce: none }) },
  };
  const nonces: Record<string, Uint8Array> = {
    "a nonce of another person": bobs,
    "a nonce for a registration": ofPasskey.nonce,
    "a nonce with a later end": flip(old, 17),
    "a nonce of another draw": flip(old, 3),
    "a short nonce": old.subarray(0, 53),
  };
  const accepted: string[] = [];
  const attempt = async (name: string, work: Promise<unknown>) => {
    const { reason } = await refusal(work).catch(() => ({ reason: "accepted" }));
    if (reason !== "RECEIPT_REFUSED") accepted.push(`${name}: ${reason}`);
  };
  for (const [name, { signed = signs({}), change, meant = {}, sent = {}, receipt }] of Object.entries(forgeries)) {
    const statement = await statementOf(ann, request, { reply: PermissionReply.ONCE, ...meant });
    const good = ann.key.sign(await nonceFor(ann), signed(statement), change);
    await attempt(name, answer(ann, request, { ...sent, receipt: { ...good, ...receipt?.(good) } }));
  }
  for (const [name, nonce] of Object.entries(nonces)) {
    const signed = ann.key.sign(nonce, await statementOf(ann, request, { reply: PermissionReply.ONCE }));
    await attempt(name, answer(ann, request, { receipt: signed }));
  }
  const deploy = (await ask("echo deploy replay")).request;
  const once = await answer(ann, deploy);
  const byBob = bob.key.sign(await nonceFor(ann), await statementOf(ann, request, { reply: PermissionReply.ONCE }));
  await attempt("a passkey of another person", answer(ann, request, { receipt: byBob }));
  await attempt("a receipt for another request", answer(ann, request, { receipt: once }));
  await attempt("a receipt of another person", answer(bob, deploy, { receipt: once }));
  const target = { sessionId: deploy.sessionId, permissionId: deploy.id };
  const asAnn = clientOf(PermissionService, replicas[1].url, ann.token);
  await asAnn.respondToPermission({ ...target, reply: PermissionReply.REJECT, reason: "no" }).catch(() => undefined);
  const { request: again } = await ask("echo deploy again");
  const approval = await answer(ann, again);
  await answer(ann, again, { reason: "changed" });
  await attempt("the receipt of an earlier vote", answer(ann, again, { receipt: approval, replyId: "other" }));
  const counted = ann.key.sign(await nonceFor(ann), await statementOf(ann, request, { reply: PermissionReply.ONCE }), {
    counter: 1,
  });
  await attempt("a counter that went back", answer(ann, request, { receipt: counted }));
  expect(accepted).toEqual([]);
  expect(Object.keys(forgeries).length + Object.keys(nonces).length).toBeGreaterThanOrEqual(40);
  const { permission, settled } = await clientOf(PermissionService, replicas[1].url, admin).getPermission({
    permissionId: request.id,
  });
  expect([permission?.votes, settled]).toEqual([[], undefined]);
  await answer(ann, other, edit("echo one edited"));
  await answer(ann, request, always(first));
});

test("a receipt proves its own request only, not the others of the call", async () => {
  const ann = await enrol("Ann");
  const { request, end } = await ask("echo one call && ls /opt");
  const permissions = clientOf(PermissionService, replicas[0].url, admin);
  const open = async () => (await permissions.listPermissions({ sessionId: request.sessionId })).permissions;
  const [first, second] = await open();
  if (first === undefined || second === undefined) throw new Error("the call asks once");
  await answer(ann, first, { wholeCall: true });
  expect(await open()).toMatchObject([{ id: second.id, votes: [] }]);
  await answer(ann, second, { wholeCall: true });
  expect((await end()).state.value).toMatchObject({ output: expect.stringContaining("one call") });
});

test("only a fresh sign-in that no other one made adds a passkey, and a registration that differs is refused", async () => {
  const dan = await invite("Dan");
  const [{ url }] = replicas;
  const people = (token: string) => clientOf(PersonService, url, token);
  const { code } = await clientOf(CredentialService, url, dan.token).createCode({});
  const { token: device } = await clientOf(CredentialService, url).signIn({ code });
  for (const token of [device, admin])
    expect(await refusal(people(token).beginPasskey({}))).toMatchObject({ reason: "METHOD_TOO_WEAK" });
  const { request: fresh } = await ask("echo fresh");
  const target = { sessionId: fresh.sessionId, permissionId: fresh.id, reply: PermissionReply.ONCE };
  const approvals = (token: string) => clientOf(PermissionService, url, token);
  expect(await refusal(approvals(device).respondToPermission(target))).toMatchObject({ reason: "METHOD_TOO_WEAK" });
  await approvals(dan.token).respondToPermission(target);
  const { settled } = await approvals(admin).getPermission({ permissionId: fresh.id });
  expect(settled).toMatchObject({ method: AnswerMethod.FRESH_SESSION, person: { id: dan.id } });
  const refused = { reason: "RECEIPT_REFUSED" };
  const { nonce: ofAnswer } = await people((await enrol("Eve")).token).beginPasskey({});
  const forged: [nonce: Uint8Array | undefined, change: Partial<Assertion>][] = [
    [ofAnswer, {}],
    [randomBytes(54), {}],
    [undefined, { clientData: { type: "webauthn.get" } }],
    [undefined, { clientData: { origin: "https://evil.example" } }],
    [undefined, { clientData: { challenge: "AAAA" } }],
    [undefined, { rpId: "evil.example" }],
    [undefined, { flags: 0x41 }],
    [undefined, { flags: 0x44 }],
  ];
  for (const [nonce, change] of forged) {
    const given = nonce ?? (await people(dan.token).beginPasskey({})).nonce;
    const finish = people(dan.token).finishPasskey({ ...dan.key.register(given, change), label: "x" });
    expect(await refusal(finish), JSON.stringify(change)).toMatchObject(refused);
  }
  const { nonce } = await people(dan.token).beginPasskey({});
  const { person } = await people(dan.token).finishPasskey({ ...dan.key.register(nonce), label: "key" });
  expect(await refusal(people(dan.token).finishPasskey(dan.key.register(nonce)))).toMatchObject(refused);
  const id = person?.passkeys[0]?.id ?? "";
  const stranger = await invite("Fay");
  expect(await refusal(people(stranger.token).removePasskey({ personId: dan.id, id }))).toMatchObject({
    reason: "ROLE_MISSING",
  });
  await people(admin).removePasskey({ personId: dan.id, id });
  const { request } = await ask("echo one removed");
  expect(await refusal(nonceFor(dan))).toMatchObject({ reason: "METHOD_TOO_WEAK" });
  const { nonce: left } = await people((await enrol("Gil")).token).beginPasskey({});
  const receipt = dan.key.sign(left, await statementOf(dan, request, { reply: PermissionReply.ONCE }));
  expect(await refusal(answer(dan, request, { receipt }))).toMatchObject(refused);
});

test("on a phone a person adds a passkey and approves with it what the page shows", async () => {
  const { code } = await clientOf(CredentialService, replicas[0].url, admin).createCode({ newPerson: "Hal" });
  const context = await browsers.browser({ viewport: { width: 360, height: 740 } });
  const page = await context.newPage();
  const devtools = await context.newCDPSession(page);
  await devtools.send("WebAuthn.enable");
  const options = { protocol: "ctap2", transport: "internal", hasResidentKey: true } as const;
  const verified = { hasUserVerification: true, isUserVerified: true, automaticPresenceSimulation: true };
  await devtools.send("WebAuthn.addVirtualAuthenticator", { options: { ...options, ...verified } });
  await page.goto(`${origin}/#code=${code}`);
  await page.getByRole("navigation").waitFor();
  await page.goto(`${origin}/#/people`);
  await page.getByRole("button", { name: "Add a passkey" }).click();
  await page.getByRole("listitem").filter({ hasText: "you" }).getByText("not used yet").waitFor();
  expect(await sticksOut(page)).toBeLessThanOrEqual(0);
  const { request, end } = await ask("echo one phone");
  await page.goto(`${origin}/#/requests/${request.id}`);
  await page
    .getByText(/0 of 1, waiting for an approver; with a passkey/)
    .first()
    .waitFor();
  await answerPage(page, /Approve once/);
  expect((await end()).state.value).toMatchObject({ output: "one phone\n" });
  const at = { TOOLGATE_URL: replicas[1].url, TOOLGATE_TOKEN: admin };
  const verifying = await toolgate(["audit", "verify", "--session", request.sessionId], at);
  expect(verifying).toMatchObject({ code: 0, stderr: expect.stringContaining("Hal  1 signed with the passkey") });
});

test("toolgate reply says where a request is approved that needs a passkey", async () => {
  const { request } = await ask("echo one terminal");
  const { token } = await invite("Ida");
  const replied = await toolgate(["reply", request.id, "once"], { TOOLGATE_URL: origin, TOOLGATE_TOKEN: token });
  expect(replied.code).not.toBe(0);
  expect(replied.stderr).toContain(`open it in the console (/r/${request.id})`);
});
