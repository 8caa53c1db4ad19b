import { createHmac, hash } from "node:crypto";
import { mkdir, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { base64url, type JWTPayload } from "jose";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { personOf } from "../../src/people/person.ts";
import { startToolgate } from "../cli/toolgate.ts";
import { clientOf, refusal } from "../e2e/clients.ts";
import { createService, type Service } from "../e2e/service.ts";
import { main } from "../main.ts";
import { startRogueIssuer } from "./rogue-issuer.ts";

const clientId = "toolgate";
const redirectUri = "http://127.0.0.1:9/";
const logoutEvents = { "http://schemas.openid.net/event/backchannel-logout": {} };

/** No two readings of the service's clock are equal, so what is to be one moment has to be one reading. */
const clock = "let last = 0; const now = Date.now; Date.now = () => (last = Math.max(last + 1, now()));";

let corp: Awaited<ReturnType<typeof startRogueIssuer>>;
let other: Awaited<ReturnType<typeof startRogueIssuer>>;
let service: Service;
let settings = "";

beforeAll(async () => {
  [corp, other] = [await startRogueIssuer(clientId), await startRogueIssuer(clientId)];
  service = createService({
    settings: "",
    env: { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(clock)}` },
  });
  await service.start();
  await service.stop();
  const secret = join(service.data, "../client-secret");
  await writeFile(secret, "a-secret-for-tests\n");
  const provider = (name: string, { issuer }: { issuer: string }) =>
    `[oidc.${name}]\nissuer = "${issuer}"\nclient_id = "${clientId}"\nclient_secret_file = "${secret}"\n` +
    `device_flow_may_approve = ${name === "other"}\n` +
    `[[role_map]]\nissuer = "${name}"\ngroup = "sre"\nroles = ["approver"]\n`;
  settings =
    `${provider("corp", corp)}${provider("other", other)}` +
    '[[role_map]]\nissuer = "corp"\nsubject = "admin-1"\nroles = ["admin"]\n' +
    '[[role_map]]\nissuer = "corp"\ngroup = "screens"\nroles = ["watcher"]\n' +
    '[group.oncall]\nmembers = ["corp:00u2"]\nclaims = ["corp:sre", "other:sre"]\n';
  await service.configure(settings);
  await service.start();
});
afterAll(async () => {
  await service.close();
  corp.close();
  other.close();
});

const credentials = () => clientOf(CredentialService, service.url);
const infoOf = (token: string) => clientOf(ToolService, service.url, token).getServerInfo({});

/** Begins a flow, as a browser or terminal does. */
async function begin(provider = "corp") {
  const { url, flow } = await credentials().beginSignIn({ provider, redirectUri });
  const asked = new URL(url).searchParams;
  return { flow, asked, state: asked.get("state") ?? "", nonce: asked.get("nonce") ?? "" };
}

let count = 0;

/** Signs in with an ID token that differs from a good one. */
async function signIn({
  claims = {},
  token,
  query = {},
  flow,
  nonce,
  provider = "corp",
}: {
  claims?: JWTPayload;
  token?: (payload: JWTPayload) => Promise<string> | string;
  query?: Record<string, string | undefined>;
  flow?: string;
  nonce?: string;
  provider?: string;
} = {}) {
  const at = provider === "corp" ? corp : other;
  const begun = await begin(provider);
  const payload = { ...at.good(nonce ?? begun.nonce), ...claims };
  at.answer(async () => ({
    ...{ access_token: "at", token_type: "Bearer", expires_in: 300 },
    id_token: await (token?.(payload) ?? at.sign(payload)),
  }));
  const code = at.allow(`code-${count++}`);
  const response = new URLSearchParams();
  for (const [name, value] of Object.entries({ code, state: begun.state, iss: at.issuer, ...query }))
    if (value !== undefined) response.set(name, value);
  const request = { provider, redirectUri, flow: flow ?? begun.flow, response: `${response}` };
  return { request, asked: begun.asked, finished: credentials().finishSignIn(request) };
}

const logOut = (token: string, provider = "corp") =>
  fetch(`${service.url}/auth/logout/${provider}`, {
    method: "POST",
    body: new URLSearchParams({ logout_token: token }),
  });
const goodLogout = (): JWTPayload => ({
  ...{ iss: corp.issuer, aud: clientId, sub: "00u1", sid: "session-1", iat: corp.now(), exp: corp.now() + 60 },
  ...{ jti: `jti-${count++}`, events: logoutEvents },
});
const signLogout = (claims: JWTPayload = {}, header: object = {}, key?: Parameters<typeof corp.sign>[2]) =>
  corp.sign({ ...goodLogout(), ...claims }, { typ: "logout+jwt", ...header }, key);

test("a person of a provider signs in with the roles and groups that its claims lead to", async () => {
  expect((await credentials().listSignInProviders({})).names).toEqual(["corp", "other"]);
  const { asked } = await begin();
  expect(Object.fromEntries(asked)).toMatchObject({
    ...{ client_id: clientId, response_type: "code", code_challenge_method: "S256", scope: "openid profile" },
    redirect_uri: redirectUri,
  });
  const { token, credential } = await (await signIn()).finished;
  const { id } = personOf(corp.issuer, "00u1");
  expect(credential).toMatchObject({ personId: id, roles: ["approver"], method: AnswerMethod.SESSION });
  expect((credential?.expires ?? 0) - (credential?.created ?? 0)).toBe(12 * 3_600_000);
  const person = { id, issuer: corp.issuer, subject: "00u1", name: "Ann A.", groups: ["oncall"] };
  expect(await infoOf(token)).toMatchObject({ person, roles: ["approver"] });
});

test("the same subject of two providers is two persons, and an e-mail address identifies no one", async () => {
  const [one, two] = [await (await signIn()).finished, await (await signIn({ provider: "other" })).finished];
  expect(one.credential?.personId).not.toBe(two.credential?.personId);
  const renamed = await (await signIn({ claims: { sub: "00u7" } })).finished;
  expect(renamed.credential?.personId).not.toBe(one.credential?.personId);
});

test("a person whom no entry of role_map fits is refused, and gets no credential", async () => {
  const { finished } = await signIn({ claims: { sub: "00u9", groups: ["staff"] } });
  expect(await refusal(finished)).toMatchObject({ reason: "ROLE_MISSING", message: expect.stringContaining("staff") });
  const admin = await (await signIn({ claims: { sub: "admin-1", groups: [] } })).finished;
  expect(admin.credential?.roles).toEqual(["admin"]);
});

const unsigned = (payload: JWTPayload, alg = "none") =>
  `${base64url.encode(JSON.stringify({ alg }))}.${base64url.encode(JSON.stringify(payload))}.`;

/** Differences from a good sign-in, each of which must refuse it. */
const forged: Record<string, () => Parameters<typeof signIn>[0] | Promise<Parameters<typeof signIn>[0]>> = {
  "state of no flow": () => ({ query: { state: "x" } }),
  "no state": () => ({ query: { state: undefined } }),
  "state of another flow": async () => ({ query: { state: (await begin()).state } }),
  "flow of another browser": async () => ({ flow: (await begin()).flow }),
  "flow that no one began": () => ({ flow: "x".repeat(43) }),
  "flow of another provider": async () => ({ flow: (await begin("other")).flow }),
  "nonce of another flow": async () => ({ nonce: (await begin()).nonce }),
  "no nonce": () => ({ token: ({ nonce, ...payload }) => corp.sign(payload) }),
  "nonce that is no text": () => ({ claims: { nonce: 7 } }),
  "iss of another provider (mix-up)": () => ({ query: { iss: other.issuer } }),
  "no iss where the provider sends it": () => ({ query: { iss: undefined } }),
  "an error of the provider": () => ({ query: { error: "access_denied", code: undefined } }),
  "no code": () => ({ query: { code: undefined } }),
  "a code that the provider never sent": () => ({ query: { code: "guessed" } }),
  "an ID token in the address": () => ({ query: { id_token: "x.y.z", code: undefined } }),
  "a response in a JWT": () => ({ query: { response: "x.y.z" } }),
  "another issuer": () => ({ claims: { iss: other.issuer } }),
  "an issuer with a slash": () => ({ claims: { iss: `${corp.issuer}/` } }),
  "another audience": () => ({ claims: { aud: "other-client" } }),
  "no audience": () => ({ claims: { aud: undefined as never } }),
  "audiences without azp": () => ({ claims: { aud: [clientId, "other-client"] } }),
  "azp of another client": () => ({ claims: { aud: [clientId, "other-client"], azp: "other-client" } }),
  "no subject": () => ({ claims: { sub: "" } }),
  "a subject that is too long": () => ({ claims: { sub: "x".repeat(256) } }),
  "a token that has expired": () => ({ claims: { exp: corp.now() - 120 } }),
  "a token without end": () => ({ claims: { exp: undefined as never } }),
  "a token that is not valid yet": () => ({ claims: { nbf: corp.now() + 300 } }),
  "a token without time": () => ({ claims: { iat: undefined as never } }),
  "no signature": () => ({ token: (payload) => unsigned(payload) }),
  "no signature, None": () => ({ token: (payload) => unsigned(payload, "None") }),
  "HS256 with the public key": () => ({
    token(payload) {
      const [head, body] = unsigned(payload, "HS256").split(".");
      const mac = createHmac("sha256", corp.publicKey).update(`${head}.${body}`).digest("base64url");
      return `${head}.${body}.${mac}`;
    },
  }),
  "HS256 with the secret of the client": () => ({
    token(payload) {
      const [head, body] = unsigned(payload, "HS256").split(".");
      const mac = createHmac("sha256", "a-secret-for-tests").update(`${head}.${body}`).digest("base64url");
      return `${head}.${body}.${mac}`;
    },
  }),
  "the key of a stranger": () => ({ token: (payload) => corp.sign(payload, {}, corp.stranger.privateKey) }),
  "the key of a stranger in the header": () => ({
    token: (payload) => corp.sign(payload, { jku: `${other.issuer}/keys` }, corp.stranger.privateKey),
  }),
  "the key of another provider": () => ({ token: (payload) => other.sign(payload) }),
  "an unknown kid": () => ({ token: (payload) => corp.sign(payload, { kid: "../../etc/passwd" }) }),
  "a body that was changed": () => ({
    token: async (payload) => {
      const [head, , mac] = (await corp.sign(payload)).split(".");
      return `${head}.${base64url.encode(JSON.stringify({ ...payload, groups: ["sre", "root"] }))}.${mac}`;
    },
  }),
  "an unknown critical header": () => ({
    token: (payload) => corp.sign(payload, { crit: ["x"], x: 1 }).catch(() => "x"),
  }),
  "no ID token": () => ({ token: () => "" }),
  "an encrypted token": () => ({ token: () => "a.b.c.d.e" }),
};

describe("a sign-in is refused with", () => {
  test.each(Object.entries(forged))("%s", async (_what, difference) => {
    const { finished } = await signIn(await difference());
    expect(await refusal(finished)).toMatchObject({ reason: "UNAUTHENTICATED" });
  });

  test("a response that was used", async () => {
    const { request, finished } = await signIn();
    await finished;
    expect(await refusal(credentials().finishSignIn(request))).toMatchObject({ reason: "UNAUTHENTICATED" });
  });
});

test("the code is exchanged with the verifier of the challenge, which no address had", async () => {
  const { asked, finished } = await signIn();
  await finished;
  const sent = corp.seen.at(-1)?.get("code_verifier") ?? "";
  expect(hash("sha256", sent, "base64url")).toBe(asked.get("code_challenge"));
});

/** Addresses to which no provider may send a person. */
const redirects = [
  ...["https://evil.example/", "http://127.0.0.1/", "http://127.0.0.1:9/path", "http://127.0.0.1:9@evil.example/"],
  ...["http://127.0.0.1.evil.example:9/", "javascript:alert(1)", "//evil.example", "http://localhost:9/"],
];

test.each(redirects)("no flow begins that ends at %s", async (address) => {
  const begun = credentials().beginSignIn({ provider: "corp", redirectUri: address });
  expect(["INVALID_MESSAGE", "ORIGIN_REFUSED"]).toContain((await refusal(begun)).reason);
});

test.each(["/auth/callback/corp", "/auth/callback/%2F%2Fevil.example", "/auth/callback///evil.example"])(
  "%s sends a browser to this service only, and does nothing",
  async (path) => {
    const { status, headers } = await fetch(`${service.url}${path}?code=c&state=s`, { redirect: "manual" });
    expect(status).toBe(303);
    const to = new URL(headers.get("location") ?? "", service.url);
    expect(`${to.origin}${to.pathname}${to.search}`).toBe(`${new URL(service.url).origin}/`);
    expect(headers.get("set-cookie")).toBeNull();
    expect(to.hash).toMatch(/^#sign-in=.*&code=c&state=s$/);
  },
);

test("a callback that names no provider is refused, and ends nothing", async () => {
  expect((await fetch(`${service.url}/auth/callback/%E0%A4%A`, { redirect: "manual" })).status).toBe(404);
  expect((await fetch(`${service.url}/healthz`)).status).toBe(200);
});

test("a page of this service signs its browser in, and no page of another origin does", async () => {
  const { origin } = new URL(service.url);
  const headers = { origin, "content-type": "application/json" };
  const callback = `${origin}/auth/callback/corp`;
  const rpc = (from: string) =>
    fetch(`${origin}/opencode.tool.v1.CredentialService/BeginSignIn`, {
      ...{ method: "POST", headers: { ...headers, origin: from } },
      body: JSON.stringify({ provider: "corp", redirectUri: callback }),
    });
  expect((await rpc("https://evil.example")).ok).toBe(false);
  const { url, flow } = (await (await rpc(origin)).json()) as { url: string; flow: string };
  const asked = new URL(url).searchParams;
  const payload = corp.good(asked.get("nonce") ?? "");
  corp.answer(async () => ({ access_token: "at", token_type: "Bearer", id_token: await corp.sign(payload) }));
  const code = corp.allow("browser");
  const response = `${new URLSearchParams({ code, state: asked.get("state") ?? "", iss: corp.issuer })}`;
  const post = (from: string) =>
    fetch(`${origin}/console/sign-in`, {
      ...{ method: "POST", headers: { ...headers, origin: from } },
      body: JSON.stringify({ provider: "corp", flow, response }),
    });
  expect((await post("https://evil.example")).status).toBe(403);
  const signedIn = await post(origin);
  expect(signedIn.status).toBe(200);
  expect(signedIn.headers.get("set-cookie")).toMatch(/HttpOnly; SameSite=Strict/);
  expect(await signedIn.json()).toEqual({ pageKey: expect.any(String) });
});

test("a terminal signs in with the browser of its machine, which comes back to a port of it", async () => {
  const home = join(service.data, "../home");
  const login = startToolgate(["login", "--provider", "corp", "--server", service.url], { HOME: home });
  await login.sees("/authorize?");
  const [address = ""] = /http:\S+authorize\?\S+/.exec(login.printed()) ?? [];
  const back = new URL(address).searchParams.get("redirect_uri") ?? "";
  for (const stranger of [`${back}?code=x&state=x`, `${back}favicon.ico`, `${back}/`])
    expect((await fetch(stranger)).status).toBe(404);
  expect((await fetch(address)).status).toBe(200);
  const { code, stdout } = await login.finished;
  expect({ code, stdout }).toMatchObject({ code: 0, stdout: expect.stringContaining("as Ann A.") });
});

/** Begins a device flow, and asks for its tokens. */
async function enterCode(answer: () => Promise<object>, provider = "corp") {
  const begun = await credentials().beginSignIn({ provider });
  const at = provider === "corp" ? corp : other;
  at.answer(answer);
  return credentials().finishSignIn({ provider, flow: begun.flow });
}

/** Answers with an ID token, which has no nonce in a device flow. */
const withoutNonce =
  (claims: JWTPayload = {}, at = () => corp, key?: Parameters<typeof corp.sign>[2]) =>
  async () => {
    const { nonce, ...payload } = at().good("");
    return { access_token: "at", token_type: "Bearer", id_token: await at().sign({ ...payload, ...claims }, {}, key) };
  };

test("a device flow waits for the person, and gives no role that decides unless the configuration says so", async () => {
  expect(await credentials().beginSignIn({ provider: "corp" })).toMatchObject({
    ...{ url: `${corp.issuer}/enter`, userCode: "WDJB-MJHT", intervalMs: 50, expiresMs: 60_000 },
  });
  const waiting = await enterCode(async () => ({ error: "authorization_pending" }));
  expect(waiting).toMatchObject({ isPending: true, slowerMs: 0, token: "" });
  expect(await enterCode(async () => ({ error: "slow_down" }))).toMatchObject({ isPending: true, slowerMs: 5_000 });
  expect(await refusal(enterCode(withoutNonce()))).toMatchObject({
    ...{ reason: "ROLE_MISSING", message: expect.stringContaining("device_flow_may_approve") },
  });
  const watching = await enterCode(withoutNonce({ groups: ["sre", "screens"] }));
  expect((await infoOf(watching.token)).roles).toEqual(["watcher"]);
  const approving = await enterCode(
    withoutNonce({}, () => other),
    "other",
  );
  expect(await infoOf(approving.token)).toMatchObject({ roles: ["approver"], person: { name: "Ann A." } });
});

test.each<[string, () => Promise<object>]>([
  ["a person who refuses", async () => ({ error: "access_denied" })],
  ["a code that has expired", async () => ({ error: "expired_token" })],
  ["no ID token", async () => ({ access_token: "at", token_type: "Bearer" })],
  ["an ID token of another provider", () => withoutNonce({ groups: ["screens"] }, () => other)()],
  ["an ID token for another client", () => withoutNonce({ groups: ["screens"], aud: "other-client" })()],
  ["an ID token that has expired", () => withoutNonce({ groups: ["screens"], exp: corp.now() - 120 })()],
  ["an ID token of a stranger", () => withoutNonce({ groups: ["screens"] }, () => corp, corp.stranger.privateKey)()],
])("a device flow is refused with %s", async (_what, answer) => {
  expect(await refusal(enterCode(answer))).toMatchObject({ reason: "UNAUTHENTICATED" });
});

test("a page begins no device flow", async () => {
  const { origin } = new URL(service.url);
  const { status } = await fetch(`${origin}/opencode.tool.v1.CredentialService/BeginSignIn`, {
    ...{ method: "POST", headers: { origin, "content-type": "application/json" } },
    body: JSON.stringify({ provider: "corp" }),
  });
  expect(status).toBe(400);
});

test("a terminal on a machine without a browser signs in with a code that is entered elsewhere", async () => {
  const home = join(service.data, "../device-home");
  const answers = [{ error: "authorization_pending" }, await withoutNonce({}, () => other)()];
  other.answer(async () => answers.shift() ?? {});
  const login = startToolgate(["login", "--provider", "other", "--device", "--server", service.url], { HOME: home });
  await login.sees(`${other.issuer}/enter`, "WDJB-MJHT");
  expect(await login.finished).toMatchObject({ code: 0, stdout: expect.stringContaining("as Ann A.") });
});

test("a logout of the provider ends the session that it names, with the devices that were added in it", async () => {
  const [one, two] = [await (await signIn()).finished, await (await signIn({ claims: { sid: "session-2" } })).finished];
  const { code } = await clientOf(CredentialService, service.url, one.token).createCode({});
  const phone = await credentials().signIn({ code });
  expect((await logOut(await signLogout())).status).toBe(200);
  for (const { token } of [one, phone])
    expect(await refusal(infoOf(token))).toMatchObject({ reason: "UNAUTHENTICATED" });
  expect((await infoOf(two.token)).roles).toEqual(["approver"]);
  expect((await logOut(await signLogout({ sid: undefined }))).status).toBe(200);
  expect(await refusal(infoOf(two.token))).toMatchObject({ reason: "UNAUTHENTICATED" });
});

test("a logout that could not be stored counts when the provider sends it again", async () => {
  const { token } = await (await signIn()).finished;
  const sent = await signLogout();
  const inTheWay = join(service.data, `credentials.json.${service.pid}.new`);
  await mkdir(inTheWay);
  expect((await logOut(sent)).status).toBe(503);
  await rmdir(inTheWay);
  expect((await logOut(sent)).status).toBe(200);
  expect(await refusal(infoOf(token))).toMatchObject({ reason: "UNAUTHENTICATED" });
});

/** Differences from a good logout token, each of which must refuse it. */
const forgedLogouts: Record<string, () => Promise<string> | string> = {
  "no token": () => "",
  "a token of a stranger": () => signLogout({}, {}, corp.stranger.privateKey),
  "a token of another provider": () => other.sign(goodLogout(), { typ: "logout+jwt" }),
  "no signature": () => unsigned(goodLogout()),
  "HS256 with the secret": () => {
    const [head, body] = unsigned(goodLogout(), "HS256").split(".");
    return `${head}.${body}.${createHmac("sha256", "a-secret-for-tests").update(`${head}.${body}`).digest("base64url")}`;
  },
  "another issuer": () => signLogout({ iss: other.issuer }),
  "another audience": () => signLogout({ aud: "other-client" }),
  "an ID token": () => corp.sign({ ...corp.good("n") }, { typ: "JWT" }),
  "a nonce": () => signLogout({ nonce: "n" }),
  "no event": () => signLogout({ events: {} }),
  "an event that is no object": () => signLogout({ events: { [Object.keys(logoutEvents)[0] ?? ""]: true } }),
  "no jti": () => signLogout({ jti: undefined as never }),
  "no time": () => signLogout({ iat: undefined as never }),
  "a time long ago": () => signLogout({ iat: corp.now() - 600, exp: corp.now() + 60 }),
  "an end in the past": () => signLogout({ exp: corp.now() - 120 }),
  "no session and no subject": () => signLogout({ sid: undefined, sub: undefined as never }),
  "a session that is no text": () => signLogout({ sid: ["session-1"] }),
  "an access token": () => signLogout({}, { typ: "at+jwt" }),
  "a token that was sent before": async () => {
    const sent = await signLogout();
    await logOut(sent);
    return sent;
  },
};

test("no forged logout token ends a sign-in", async () => {
  const refused: Record<string, number> = {};
  for (const [what, make] of Object.entries(forgedLogouts)) {
    const token = await make();
    const { token: session } = await (await signIn()).finished;
    refused[what] = (await logOut(token)).status;
    await infoOf(session);
  }
  expect(refused).toEqual(Object.fromEntries(Object.keys(forgedLogouts).map((what) => [what, 400])));
  const { token } = await (await signIn()).finished;
  expect((await logOut(await signLogout(), "nowhere")).status).toBe(400);
  await infoOf(token);
});

test("a provider that is away signs no one in, and ends no sign-in", async () => {
  const { token } = await (await signIn()).finished;
  const { request, finished } = await signIn();
  await finished;
  corp.setAway(true);
  expect(await refusal(credentials().finishSignIn(request))).toMatchObject({ reason: "PROVIDER_UNAVAILABLE" });
  expect((await infoOf(token)).roles).toEqual(["approver"]);
  corp.setAway(false);
});

test("a reload that lets no device flow approve ends what such a sign-in, and the devices that it added, may do", async () => {
  const one = await enterCode(
    withoutNonce({}, () => other),
    "other",
  );
  const { code } = await clientOf(CredentialService, service.url, one.token).createCode({});
  const phone = await credentials().signIn({ code });
  expect((await infoOf(phone.token)).roles).toEqual(["approver"]);
  await service.configure(settings.replace("device_flow_may_approve = true", "device_flow_may_approve = false"));
  process.kill(service.pid ?? 0, "SIGHUP");
  for (const { token } of [one, phone])
    await vi.waitFor(async () => expect(await refusal(infoOf(token))).toMatchObject({ reason: "UNAUTHENTICATED" }));
});

describe("a configuration is refused with its line", () => {
  const provider = (name: string, issuer = `https://login.${name}.example`, rest = "") =>
    `[oidc.${name}]\nissuer = "${issuer}"\nclient_id = "toolgate"\n${rest}`;
  const roles = (fields: string) => `[[role_map]]\n${fields}\n`;
  const sre = roles('issuer = "corp"\ngroup = "sre"\nroles = ["approver"]');
  test.each<[why: string, text: string, line: number, message: string]>([
    ["a provider without roles", provider("corp"), 2, "lets no one in"],
    ["roles of no provider", sre, 2, "lets no one in"],
    ["a provider without TLS", provider("corp", "http://login.example") + sre, 2, "could not be trusted"],
    ["one issuer twice", provider("corp") + sre + provider("too", "https://login.corp.example") + sre, 9, "is that of"],
    ["a role of programs", provider("corp") + sre.replace("approver", "caller"), 7, "roles"],
    ["no role", provider("corp") + sre.replace('"approver"', ""), 7, "roles"],
    ["group and subject", `${provider("corp")}${sre}subject = "x"\n`, 4, "exactly one of group and subject"],
    ["no secret", provider("corp", undefined, 'client_secret_file = "/none"\n') + sre, 4, "cannot be read"],
    ["an empty secret", provider("corp", undefined, 'client_secret_file = "/dev/null"\n') + sre, 4, "is empty"],
    ["a session without unit", provider("corp", undefined, 'session = "12"\n') + sre, 4, "session"],
    [
      "everyone with an account",
      `${provider("google", "https://accounts.google.com")}${sre.replace("sre", "*").replace("corp", "google")}`,
      6,
      "would let in everyone",
    ],
    ["a member of no provider", '[group.sre]\nmembers = ["corp:00u1"]\n', 2, "has no one in it"],
    ["a claim of no provider", '[group.sre]\nclaims = ["sre"]\n', 2, "has no one in it"],
    ["an empty group", "[group.sre]\n", 1, "has no one in it"],
  ])("%s", async (_why, text, line, message) => {
    const file = join(service.data, "../refused.toml");
    await writeFile(file, text);
    const { code, stdout, stderr } = await main(["check-config", file], {});
    expect(code).not.toBe(0);
    expect(stdout + stderr).toContain(message);
    expect(stdout + stderr).toMatch(new RegExp(`(?::|line )${line}:`));
  });
});
