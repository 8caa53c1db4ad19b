import { execFile } from "node:child_process";
import { constants, createHmac, generateKeyPairSync, KeyObject, sign as signatureOf } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { Code, ConnectError } from "@connectrpc/connect";
import { base64url, exportJWK, exportSPKI, generateKeyPair, type JWTPayload, jwtVerify, SignJWT } from "jose";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { parse } from "yaml";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createIssuerKeys } from "../../src/people/issuer-keys.ts";
import { clientOf, refusal } from "../e2e/clients.ts";
import { read } from "../e2e/reading.ts";
import { createService, type Service } from "../e2e/service.ts";
import { main } from "../main.ts";

const keyPair = await generateKeyPair("RS256", { extractable: true });
const elliptic = await generateKeyPair("ES256", { extractable: true });
const stranger = await generateKeyPair("RS256", { extractable: true });
const short = generateKeyPairSync("rsa", { modulusLength: 1_024 });
const publicKeys = {
  keys: [
    { ...(await exportJWK(keyPair.publicKey)), kid: "rsa", use: "sig" },
    { ...(await exportJWK(elliptic.publicKey)), kid: "ec", use: "sig", alg: "ES256" },
    { ...short.publicKey.export({ format: "jwk" }), kid: "short", use: "sig" },
  ],
};

/** An issuer that publishes its keys, and counts how often they are read. */
const published = { reads: 0, isAway: false };
const issuerServer = createServer(async (request, response) => {
  if (published.isAway) return void response.writeHead(503).end();
  const base = `http://127.0.0.1:${(issuerServer.address() as AddressInfo).port}`;
  if (request.url === "/keys") published.reads++;
  const body = request.url === "/keys" ? publicKeys : { issuer: base, jwks_uri: `${base}/keys` };
  response.setHeader("content-type", "application/json");
  const { pathname, searchParams } = new URL(request.url ?? "", base);
  // As in a job of GitHub Actions: the token of a request gets one for an audience.
  if (pathname === "/job" && request.headers.authorization === "bearer of-the-job") {
    const job = { ...good(), iss: github, sub: "repo:acme/shop:ref:refs/heads/main" };
    return void response.end(
      JSON.stringify({ value: await sign({ ...job, aud: searchParams.get("audience") ?? "" }, { typ: "JWT" }) }),
    );
  }
  response.end(JSON.stringify(body));
});

let service: Service;
let live = "";
const corp = "https://login.corp.example";
const github = "https://token.actions.githubusercontent.com";
const kubernetes = "https://kubernetes.default.svc.cluster.local";

beforeAll(async () => {
  await new Promise<void>((resolve) => issuerServer.listen(0, "127.0.0.1", resolve));
  live = `http://127.0.0.1:${(issuerServer.address() as AddressInfo).port}`;
  service = createService();
  await service.start();
  const file = join(service.data, "../keys.json");
  await writeFile(file, JSON.stringify(publicKeys));
  const entry = (issuer: string, subject: string, rest = "") =>
    `[[jwt]]\nissuer = "${issuer}"\naudience = "toolgate"\nsubject = "${subject}"\njwks_file = "${file}"\n${rest}`;
  await service.stop();
  await service.configure(
    [
      entry(corp, "*"),
      entry(github, "repo:acme/shop:*", 'typ = "any"\nagents = ["ci"]\n'),
      entry(kubernetes, "system:serviceaccount:agents:*", 'typ = "any"\nroles = ["caller", "watcher"]\n'),
      `[[jwt]]\nissuer = "${live}"\naudience = "toolgate"\nsubject = "*"\n`,
      "[agent.ci]\n[rest]\nenabled = true\n",
    ].join(""),
  );
  await service.start();
});
afterAll(async () => {
  await service.close();
  issuerServer.close();
});

const now = () => Math.floor(Date.now() / 1_000);
const good = (): JWTPayload => ({ iss: corp, aud: "toolgate", sub: "ann", iat: now(), exp: now() + 600 });
const header = { alg: "RS256", kid: "rsa", typ: "at+jwt" };
const sign = (payload: JWTPayload, protectedHeader: object = {}, key = keyPair.privateKey) =>
  new SignJWT(payload).setProtectedHeader({ ...header, ...protectedHeader }).sign(key);
const infoOf = (token: string) => clientOf(ToolService, service.url, token).getServerInfo({});
const isRefused = (token: string) =>
  infoOf(token).then(
    () => false,
    (error) => ConnectError.from(error).code === Code.Unauthenticated,
  );
const raw = (head: object, payload: object, signature: string | Uint8Array = "") =>
  `${base64url.encode(JSON.stringify(head))}.${base64url.encode(JSON.stringify(payload))}.${base64url.encode(signature)}`;

test("a token of the issuer calls with the rights of its entry, and is no person who answers", async () => {
  const info = await infoOf(await sign(good()));
  expect(info).toMatchObject({ principal: "ann@login.corp.example", roles: ["caller"] });
  expect(info.person).toMatchObject({ issuer: corp, subject: "ann" });
  expect(await infoOf(await sign(good(), { alg: "ES256", kid: "ec" }, elliptic.privateKey))).toMatchObject({
    principal: "ann@login.corp.example",
  });
});

test("opencode's API takes a token of the issuer as the password of HTTP basic", async () => {
  const authorization = `Basic ${btoa(`opencode:${await sign({ ...good(), sub: "bea" })}`)}`;
  expect((await fetch(`${service.url}/session`, { headers: { authorization } })).status).toBe(200);
  const refused = await fetch(`${service.url}/mcp`, { method: "POST", headers: { authorization } });
  expect(refused.status).toBe(401);
});

test("a token of GitHub Actions calls as the agent of its entry, and only from the repository that it names", async () => {
  const token = (repository: string) =>
    sign(
      {
        ...good(),
        iss: github,
        sub: `repo:${repository}:ref:refs/heads/main`,
        ...{
          repository,
          ref: "refs/heads/main",
          workflow: "deploy",
          actor: "octocat",
          runner_environment: "github-hosted",
        },
      },
      { typ: "JWT" },
    );
  expect(await infoOf(await token("acme/shop"))).toMatchObject({
    principal: "repo:acme/shop:ref:refs/heads/main@token.actions.githubusercontent.com",
    agents: ["ci"],
  });
  expect(await isRefused(await token("acme/shop-evil"))).toBe(true);
  expect(await isRefused(await token("mallory/shop"))).toBe(true);
});

test("a service-account token of Kubernetes, which has no typ, calls and watches", async () => {
  const sub = "system:serviceaccount:agents:builder";
  const pod = {
    namespace: "agents",
    pod: { name: "builder-0", uid: "1" },
    serviceaccount: { name: "builder", uid: "2" },
  };
  const token = (of: string) =>
    sign({ ...good(), iss: kubernetes, aud: ["toolgate"], sub: of, "kubernetes.io": pod }, { typ: undefined });
  expect((await infoOf(await token(sub))).roles).toEqual(["caller", "watcher"]);
  expect(await isRefused(await token("system:serviceaccount:other:builder"))).toBe(true);
});

/** Reads a file of `examples/ci`. */
const exampleOf = async (name: string) =>
  parse(await readFile(join(import.meta.dirname, "../../examples/ci", name), "utf8"));

/** Runs lines of an example, which reach this service. */
const runLines = (lines: string, env: Record<string, string>) =>
  promisify(execFile)("sh", ["-euc", lines], {
    env: { PATH: `${dirname(process.execPath)}:${process.env.PATH}`, TOOLGATE_URL: service.url, ...env },
  });

test("the workflow of examples/ci runs a command with the token of its job once a person approves it", async () => {
  const { jobs, permissions } = await exampleOf("github-actions.yaml");
  expect(permissions).toEqual({ "id-token": "write" });
  await writeFile(join(service.workspace, "deploy"), '#!/bin/sh\necho "deployed to $1"\n', { mode: 0o755 });
  const approver = clientOf(PermissionService, service.url, "approver-token-for-tests");
  const job = runLines(jobs.deploy.steps[0].run, {
    ACTIONS_ID_TOKEN_REQUEST_URL: `${live}/job?api-version=2.0`,
    ACTIONS_ID_TOKEN_REQUEST_TOKEN: "of-the-job",
  });
  for await (const { event } of approver.watchPermissions({})) {
    if (event?.event.case !== "permissionAsked") continue;
    const { id: permissionId, sessionId, agent, person } = event.event.value;
    if (agent !== "ci") continue;
    expect(person).toMatchObject({ issuer: github, subject: "repo:acme/shop:ref:refs/heads/main" });
    await approver.respondToPermission({ sessionId, permissionId, reply: 1 });
    break;
  }
  expect((await job).stdout).toContain("deployed to staging");
});

test("the Pod of examples/ci calls a tool with the token that the kubelet writes", async () => {
  const { metadata, spec } = await exampleOf("kubernetes.yaml");
  const [{ command, volumeMounts }] = spec.containers;
  const [{ serviceAccountToken }] = spec.volumes[0].projected.sources;
  const sub = `system:serviceaccount:${metadata.namespace}:${spec.serviceAccountName}`;
  const folder = join(service.data, "../projected");
  await mkdir(folder);
  const token = await sign(
    { ...good(), iss: kubernetes, aud: [serviceAccountToken.audience], sub },
    { typ: undefined },
  );
  await writeFile(join(folder, serviceAccountToken.path), token);
  const { stdout } = await runLines(command[2].replaceAll(volumeMounts[0].mountPath, folder), {});
  expect(stdout).toContain("built");
});

test("the person for whom an agent acts is on its requests, and keeps sessions apart from other persons", async () => {
  const actingFor = (sub: string) =>
    sign({ ...good(), sub, name: "Ann A.", act: { sub: "gateway", act: { sub: "coder" } } });
  const token = await actingFor("ann");
  expect((await infoOf(token)).principal).toBe("ann@login.corp.example by coder");
  const { session } = await clientOf(SessionService, service.url, token).createSession({});
  const sessionId = session?.id ?? "";
  const call = { sessionId, tool: "bash", input: { command: "true" } };
  const asked = await read(clientOf(ToolService, service.url, token).executeTool(call)).until("permissionAsked");
  expect(asked.person).toMatchObject({ issuer: corp, subject: "ann", name: "Ann A." });
  const others = clientOf(SessionService, service.url, await actingFor("bob"));
  expect(await refusal(others.getSession({ sessionId }))).toMatchObject({ reason: "NO_SUCH_SESSION" });
  const { permissionId } = { permissionId: asked.id };
  expect(
    await refusal(
      clientOf(PermissionService, service.url, token).respondToPermission({ sessionId, permissionId, reply: 1 }),
    ),
  ).toMatchObject({ reason: "ROLE_MISSING" });
});

test("a stream ends when its token expires, and the call that it follows goes on", async () => {
  const token = await sign({ ...good(), exp: now() + 3 });
  const { session } = await clientOf(SessionService, service.url, token).createSession({});
  const sessionId = session?.id ?? "";
  const call = { sessionId, tool: "bash", input: { command: "true" } };
  const stream = read(clientOf(ToolService, service.url, token).executeTool(call));
  const { id: permissionId } = await stream.until("permissionAsked");
  expect(await refusal(stream.until("output"))).toMatchObject({ reason: "UNAUTHENTICATED" });
  const approver = clientOf(PermissionService, service.url, "approver-token-for-tests");
  expect((await approver.getPermission({ permissionId })).settled).toBeUndefined();
  expect(await isRefused(token)).toBe(true);
});

test("published keys are read once for many tokens, and an issuer that is away stops no token of known keys", async () => {
  const token = (kid = "rsa") => sign({ ...good(), iss: live, jti: crypto.randomUUID() }, { kid });
  for (let i = 0; i < 5; i++) expect((await infoOf(await token())).roles).toEqual(["caller"]);
  expect(published.reads).toBe(1);
  published.isAway = true;
  expect((await infoOf(await token())).roles).toEqual(["caller"]);
  // Unknown keys make it ask again, at most once a minute.
  for (let i = 0; i < 5; i++) expect(await isRefused(await token("unknown"))).toBe(true);
  expect(published.reads).toBe(1);
});

test("published keys count for a day in which their issuer is away, and no longer", async () => {
  const start = Date.now();
  let time = start;
  const keys = createIssuerKeys(() => time);
  const token = await sign({ ...good(), iss: live });
  const check = () => keys.with({ issuer: live }, (find) => jwtVerify(token, find, { currentDate: new Date(start) }));
  published.isAway = false;
  await check();
  published.isAway = true;
  for (const hours of [1, 23]) {
    time = start + hours * 3_600_000;
    expect((await check()).payload.sub).toBe("ann");
  }
  time = start + 24 * 3_600_000;
  await expect(check()).rejects.toThrow("could not be read for a day");
});

type Forge = () => Promise<string> | string;

const changed =
  (change: JWTPayload, head: object = {}): Forge =>
  () =>
    sign({ ...good(), ...change }, head);
const without =
  (...claims: string[]): Forge =>
  () =>
    sign(Object.fromEntries(Object.entries(good()).filter(([claim]) => !claims.includes(claim))));
const hmac =
  (secret: string | Buffer, alg: "HS256" | "HS384" | "HS512", head: object = {}): Forge =>
  () => {
    const unsigned = raw({ ...header, alg, ...head }, good()).slice(0, -1);
    return `${unsigned}.${createHmac(`sha${alg.slice(2)}`, secret)
      .update(unsigned)
      .digest("base64url")}`;
  };
const spki = await exportSPKI(keyPair.publicKey);
const modulus = publicKeys.keys[0]?.n ?? "";
const strangerKey = { ...(await exportJWK(stranger.publicKey)), kid: "rsa" };
const forgedBy =
  (head: object): Forge =>
  () =>
    sign(good(), head, stranger.privateKey);
const edited = async (edit: (parts: [string, string, string]) => string) => {
  const [head = "", body = "", signature = ""] = (await sign(good())).split(".");
  return edit([head, body, signature]);
};
const encoded = (value: object) => base64url.encode(JSON.stringify(value));

/** Tokens that no one may get in with, by what is wrong with them. */
const forged: Record<string, Forge> = {
  ...Object.fromEntries(
    ["none", "None", "NONE", "nOnE", "", "null"].flatMap((alg) => [
      [`alg "${alg}" without a signature`, () => raw({ ...header, alg }, good())],
      [
        `alg "${alg}" with the signature of another token`,
        () => edited(([, , s]) => `${encoded({ ...header, alg })}.${encoded(good())}.${s}`),
      ],
    ]),
  ),
  ...Object.fromEntries(
    (["HS256", "HS384", "HS512"] as const).flatMap((alg) => [
      [`${alg} with the public key in PEM as secret`, hmac(spki, alg)],
      [`${alg} with the public key in PEM and a line feed`, hmac(`${spki}\n`, alg)],
      [`${alg} with the modulus as secret`, hmac(Buffer.from(modulus, "base64url"), alg)],
      [`${alg} with the key in JSON as secret`, hmac(JSON.stringify(publicKeys.keys[0]), alg)],
      [`${alg} with an empty secret`, hmac("", alg)],
      [`${alg} with the kid as secret`, hmac("rsa", alg)],
      [`${alg} without a kid`, hmac(spki, alg, { kid: undefined })],
    ]),
  ),
  "a key of the sender": forgedBy({}),
  "a key of the sender in jwk": forgedBy({ jwk: strangerKey }),
  "a key of the sender in jwk without kid": forgedBy({ jwk: strangerKey, kid: undefined }),
  "a key of the sender at jku": forgedBy({ jku: "http://127.0.0.1:1/keys" }),
  "a key of the sender at x5u": forgedBy({ x5u: "http://127.0.0.1:1/chain" }),
  "a key of the sender in x5c": forgedBy({ x5c: [base64url.encode("certificate")] }),
  "a kid that is a path": forgedBy({ kid: "../../../../dev/null" }),
  "a kid with SQL": forgedBy({ kid: "rsa' UNION SELECT 'key" }),
  "a kid that is a command": forgedBy({ kid: "rsa|id" }),
  "a kid that is a member of every object": forgedBy({ kid: "__proto__" }),
  "a kid that is empty": forgedBy({ kid: "" }),
  "an unknown kid": changed({}, { kid: "other" }),
  "the kid of a key of another kind": changed({}, { kid: "ec" }),
  "a key of the issuer that is too short": () => {
    const signed = raw({ ...header, kid: "short" }, good()).slice(0, -1);
    return `${signed}.${signatureOf("sha256", Buffer.from(signed), short.privateKey).toString("base64url")}`;
  },
  "a signature of the issuer's key in another form": () => {
    const signed = raw(header, good()).slice(0, -1);
    const key = { key: KeyObject.from(keyPair.privateKey), padding: constants.RSA_PKCS1_PSS_PADDING };
    return `${signed}.${signatureOf("sha256", Buffer.from(signed), key).toString("base64url")}`;
  },
  // The last character of 256 bytes has four bits that mean nothing.
  "another spelling of the signature": () =>
    edited(([h, b, s]) => `${h}.${b}.${s.slice(0, -1)}${{ A: "B", Q: "R", g: "h", w: "x" }[s.slice(-1)]}`),
  "an unknown critical header": () =>
    edited(([, b, s]) => `${encoded({ ...header, crit: ["exp"], exp: 1 })}.${b}.${s}`),
  "a payload without encoding": () =>
    edited(([, b, s]) => `${encoded({ ...header, crit: ["b64"], b64: false })}.${b}.${s}`),
  "another audience": changed({ aud: "other" }),
  "an audience that begins like ours": changed({ aud: "toolgate.evil.example" }),
  "an audience in another case": changed({ aud: "Toolgate" }),
  "a list of other audiences": changed({ aud: ["other", "toolgate2"] }),
  "an empty list of audiences": changed({ aud: [] }),
  "an empty audience": changed({ aud: "" }),
  "no audience": without("aud"),
  "another issuer": changed({ iss: "https://evil.example" }),
  "an issuer with a slash": changed({ iss: `${corp}/` }),
  "an issuer in another case": changed({ iss: "https://LOGIN.corp.example" }),
  "an issuer with http": changed({ iss: "http://login.corp.example" }),
  "an issuer that begins like ours": changed({ iss: `${corp}.evil.example` }),
  "no issuer": without("iss"),
  "no subject": without("sub"),
  "an empty subject": changed({ sub: "" }),
  "a long subject": changed({ sub: "a".repeat(300) }),
  "no expiry": without("exp"),
  "an expiry in the past": () => sign({ ...good(), exp: now() - 3_600 }),
  "an expiry a second ago": () => sign({ ...good(), exp: now() - 1 }),
  "an expiry that is 0": changed({ exp: 0 }),
  "an expiry before 1970": changed({ exp: -1 }),
  "a start in the future": () => sign({ ...good(), nbf: now() + 3_600 }),
  "a start beyond the skew": () => sign({ ...good(), nbf: now() + 90 }),
  "a time of issue in the future": () => sign({ ...good(), iat: now() + 3_600 }),
  "a time of issue beyond the skew": () => sign({ ...good(), iat: now() + 90 }),
  "no typ": changed({}, { typ: undefined }),
  "the typ of an ID token": changed({ nonce: "n" }, { typ: "JWT" }),
  "the typ of a logout token": changed({}, { typ: "logout+jwt" }),
  "the typ of an ID-JAG": changed({}, { typ: "oauth-id-jag+jwt" }),
  "the typ of a proof": changed({}, { typ: "dpop+jwt" }),
  "a typ that begins like ours": changed({}, { typ: "at+jwt2" }),
  "a binding to a key": changed({ cnf: { jkt: "thumbprint" } }),
  "a binding to a certificate": changed({ cnf: { "x5t#S256": "thumbprint" } }),
  "an ID token by its nonce, where any typ is accepted": changed(
    { iss: github, sub: "repo:acme/shop:x", nonce: "n" },
    { typ: "JWT" },
  ),
  "an ID token by its at_hash, where any typ is accepted": changed(
    { iss: github, sub: "repo:acme/shop:x", at_hash: "h" },
    { typ: "JWT" },
  ),
  "a logout token, where any typ is accepted": changed({ iss: github, sub: "repo:acme/shop:x" }, { typ: "logout+jwt" }),
  "an ID-JAG, where any typ is accepted": changed(
    { iss: github, sub: "repo:acme/shop:x" },
    { typ: "oauth-id-jag+jwt" },
  ),
  "a subject of another repository": changed({ iss: github, sub: "repo:acme/shopping:x" }, { typ: "JWT" }),
  "a subject of another owner": changed({ iss: github, sub: "repo:evil/repo:acme/shop:x" }, { typ: "JWT" }),
  "a subject with a line feed in front": changed({ iss: github, sub: "\nrepo:acme/shop:x" }, { typ: "JWT" }),
  "a subject of another namespace": changed(
    { iss: kubernetes, sub: "system:serviceaccount:agents2:x" },
    { typ: undefined },
  ),
  "an anonymous subject": changed({ iss: kubernetes, sub: "system:anonymous" }, { typ: undefined }),
  "a payload that was changed": () => edited(([h, , s]) => `${h}.${encoded({ ...good(), sub: "root" })}.${s}`),
  "a header that was changed": () => edited(([, b, s]) => `${encoded({ ...header, kid: "rsa", extra: 1 })}.${b}.${s}`),
  "a signature without its end": () => edited(([h, b, s]) => `${h}.${b}.${s.slice(0, -4)}`),
  "an empty signature": () => edited(([h, b]) => `${h}.${b}.`),
  "two parts": () => edited(([h, b]) => `${h}.${b}`),
  "four parts": () => edited(([h, b, s]) => `${h}.${b}.${s}.${s}`),
  "five parts": () => edited(([h, b, s]) => `${h}.${b}.${s}.${s}.${s}`),
  "a payload that is no object": () => edited(([h, , s]) => `${h}.${base64url.encode("[]")}.${s}`),
  "a payload that is no JSON": () => edited(([h, , s]) => `${h}.${base64url.encode("{")}.${s}`),
  "a header that is no JSON": () => edited(([, b, s]) => `${base64url.encode("{")}.${b}.${s}`),
  "a header without alg": () => edited(([, b, s]) => `${encoded({ kid: "rsa", typ: "at+jwt" })}.${b}.${s}`),
  "a length beyond the limit": changed({ pad: "a".repeat(8_000) }),
};

test(`none of ${Object.keys(forged).length} forged tokens is accepted`, async () => {
  expect(Object.keys(forged).length).toBeGreaterThanOrEqual(80);
  const accepted: string[] = [];
  for (const [name, forge] of Object.entries(forged)) if (!(await isRefused(await forge()))) accepted.push(name);
  expect(accepted).toEqual([]);
  expect((await infoOf(await sign(good()))).roles).toEqual(["caller"]);
});

/** Entries with these names, of which the last one is refused. */
const certificates = (...names: string[]) =>
  `tls_client_ca = "ca.pem"\n${names.map((san) => `[[client_cert]]\nsan = "${san}"\n`).join("")}`;

describe("a configuration is refused with its line", () => {
  const keysFile = () => join(service.data, "../keys.json");
  const entry = (fields: Record<string, string>) =>
    `[[jwt]]\n${Object.entries({ issuer: corp, audience: "toolgate", subject: "*", jwks_file: keysFile(), ...fields })
      .filter(([, value]) => value !== "")
      .map(([name, value]) => `${name} = ${value.startsWith("[") ? value : JSON.stringify(value)}\n`)
      .join("")}`;
  test.each<[why: string, text: () => string, line: number, message: string]>([
    ["an approver", () => entry({ roles: '["approver"]' }), 6, "roles"],
    ["an admin", () => entry({ roles: '["admin"]' }), 6, "roles"],
    ["no role", () => entry({ roles: "[]" }), 6, "roles"],
    ["no audience", () => entry({ audience: "" }), 1, "audience"],
    ["an entry that an earlier one covers", () => entry({}) + entry({ subject: "repo:*" }), 9, "lets no one in"],
    ["everyone at GitHub", () => entry({ issuer: github }), 4, "would let in everyone"],
    ["every repository of GitHub", () => entry({ issuer: github, subject: "repo:*" }), 4, "would let in everyone"],
    [
      "keys without TLS",
      () => entry({ issuer: "http://login.corp.example", jwks_file: "" }),
      2,
      "could not be trusted",
    ],
    ["no file of keys", () => entry({ jwks_file: "/nonexistent.json" }), 5, "cannot be read"],
    [
      "a file without a public key",
      () => entry({ jwks_file: join(service.data, "../none.json") }),
      5,
      "has no public key",
    ],
    ["a worker without tools", () => entry({ roles: '["worker"]' }), 6, "worker"],
    [
      "a token of a person of no provider",
      () => `[[token]]\nid = "a"\nroles = ["approver"]\nsha256 = "${"a".repeat(64)}"\nperson = "corp:ann"\n`,
      5,
      "has no one in it by",
    ],
    ["a certificate that no client is asked for", () => '[[client_cert]]\nsan = "ci"\n', 2, "set tls_client_ca"],
    ["a certificate of an approver", () => '[[client_cert]]\nsan = "ci"\nroles = ["approver"]\n', 3, "roles"],
    ["a certificate without a name", () => '[[client_cert]]\nroles = ["caller"]\n', 1, "san"],
    ["a certificate of a person", () => certificates("ann@corp.example"), 3, "no DNS name or URI"],
    ["a certificate that an earlier entry covers", () => certificates("*.corp", "ci.corp"), 5, "the entry in line 2"],
  ])("%s", async (_why, text, line, message) => {
    await writeFile(join(service.data, "../none.json"), '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}');
    const file = join(service.data, "../refused.toml");
    await writeFile(file, text());
    const { code, stdout, stderr } = await main(["check-config", file], {});
    expect(code).not.toBe(0);
    expect(stdout + stderr).toContain(message);
    if (message !== "worker") expect(stdout + stderr).toMatch(new RegExp(`(?::|line )${line}:`));
  });
});
