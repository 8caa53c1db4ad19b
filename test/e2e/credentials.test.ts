import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { request as httpRequest } from "node:http";
import { connect as connectHttp2 } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { Code, createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-node";
import { expect, onTestFinished, test } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { PermissionService } from "../../gen/opencode/tool/v1/permission_service_pb.ts";
import { PersonService } from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { SessionService } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { ToolService } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { defaultUrl } from "../../src/client/find-server.ts";
import { saveLogin } from "../../src/client/stored-logins.ts";
import { toolgate } from "../cli/toolgate.ts";
import { main, programEntry } from "../main.ts";
import { startRedis } from "../store/redis-server.ts";
import { clientOf, refusal } from "./clients.ts";
import { startService, useService } from "./service.ts";

const service = useService();
const as = (token: string) => clientOf(CredentialService, service.url, token);
const infoOf = (token: string, url = service.url) => clientOf(ToolService, url, token).getServerInfo({});

/** Starts a service on a new data directory, with generated tokens; resolves with its first line and all that it printed. */
async function serveJson(prepare: (data: string) => Promise<void> = async () => {}, env: Record<string, string> = {}) {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-secrets-"));
  const [data, workspace] = [join(folder, "data"), join(folder, "work")];
  await mkdir(workspace);
  await prepare(data);
  const flags = ["--listen", "127.0.0.1:0", "--data", data, "--workspace", workspace];
  const child = spawn(process.execPath, [programEntry(), "serve", "--json", ...flags], {
    env: { PATH: process.env.PATH, HOME: folder, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  onTestFinished(async () => {
    child.kill("SIGKILL");
    await once(child, "exit");
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  });
  const stderr: string[] = [];
  child.stderr.on("data", (text: Buffer) => stderr.push(text.toString()));
  const [line] = await once(createInterface({ input: child.stdout }), "line");
  const { url, sign_in_code: code } = JSON.parse(line);
  return { url: String(url), code: String(code), data, folder, printed: () => stderr.join("") };
}

async function filesIn(directory: string): Promise<string[]> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map(({ parentPath, name }) => join(parentPath, name));
}

test("neither the data directory nor the log nor the output holds a credential that can approve", async () => {
  const { url, code, data, printed } = await serveJson();
  const { token } = await clientOf(CredentialService, url).signIn({ code, label: "terminal" });
  const made = await clientOf(CredentialService, url, token).createToken({ roles: ["caller"] });
  expect((await infoOf(token, url)).roles).toEqual(["approver"]);

  // A file that is being written takes the place of another one at any moment.
  const files = (await filesIn(data)).filter((file) => !file.endsWith(".new"));
  const texts = await Promise.all(files.map((file) => readFile(file, "latin1")));
  const words = new Set([...texts, printed()].flatMap((text) => text.match(/[\w~.+/-]{16,200}/g) ?? []));
  expect(words).not.toContain(token);
  expect(words).not.toContain(made.token);
  expect([...texts, printed()].join()).not.toContain(code);
  const accepted: string[][] = [];
  for (const word of words) {
    const headers = { authorization: `Bearer ${word}`, "content-type": "application/json" };
    const response = await fetch(`${url}/opencode.tool.v1.ToolService/GetServerInfo`, {
      method: "POST",
      headers,
      body: "{}",
    });
    if (response.ok) accepted.push(((await response.json()) as { roles: string[] }).roles);
  }
  // Only tokens/caller, which can ask and not answer.
  expect(accepted).toEqual([["caller"]]);
  expect((await stat(join(data, "credentials.json"))).mode & 0o777).toBe(0o600);
});

test("an agent that runs as the service's user cannot answer its own request with what the data directory holds", async () => {
  const { url, code, data, folder } = await serveJson();
  await clientOf(CredentialService, url).signIn({ code });
  const env = { HOME: folder, XDG_CONFIG_HOME: join(folder, "agent"), TOOLGATE_URL: url, TOOLGATE_DATA: data };
  const input = JSON.stringify({ command: "echo mine" });
  await toolgate(["call", "bash", input, "--detach"], env);
  const caller = (await readFile(join(data, "tokens", "caller"), "utf8")).trim();
  const open = async () => (await clientOf(PermissionService, url, caller).listPermissions({})).permissions;
  await expect.poll(open).toHaveLength(1);
  const [{ id, sessionId } = { id: "", sessionId: "" }] = await open();
  expect(await toolgate(["reply", id, "once", "--session", sessionId], env)).toMatchObject({
    code: 6,
    stderr: expect.stringContaining("not signed in: run `toolgate login`"),
  });
  const own = await toolgate(["reply", id, "once", "--session", sessionId, "--token", caller], env);
  expect(own.code).not.toBe(0);
  expect(await open()).toHaveLength(1);
});

test("the approver token of an earlier version stays valid, and its file is replaced by a hash", async () => {
  const { url, data, printed } = await serveJson(async (data) => {
    await mkdir(join(data, "tokens"), { recursive: true });
    await writeFile(join(data, "tokens", "approver"), "token-of-the-earlier-version\n");
  });
  expect(await infoOf("token-of-the-earlier-version", url)).toMatchObject({
    principal: "approver",
    roles: ["approver"],
  });
  expect(await readdir(join(data, "tokens"))).toEqual(["caller"]);
  expect(await readFile(join(data, "credentials.json"), "utf8")).not.toContain("token-of-the-earlier-version");
  expect(printed()).toContain("the file of the approver token is deleted");
  expect(printed()).toContain("note       tokens/approver is deleted");
});

test("a configured service deletes a leftover approver token without accepting it", async () => {
  const configured = await startService();
  await configured.stop();
  await mkdir(join(configured.data, "tokens"), { recursive: true });
  await writeFile(join(configured.data, "tokens", "approver"), "leftover-token\n");
  await configured.start();
  expect(await refusal(infoOf("leftover-token", configured.url))).toMatchObject({ reason: "UNAUTHENTICATED" });
  expect(await readdir(join(configured.data, "tokens"))).toEqual([]);
});

test("a code signs in once; of two racing exchanges one wins", async () => {
  const { code } = await as("approver-token-for-tests").createCode({});
  const exchanges = await Promise.allSettled([1, 2].map(() => as("").signIn({ code, label: "Anna's laptop" })));
  expect(exchanges.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected"]);
  const won = exchanges.find((exchange) => exchange.status === "fulfilled")?.value;
  expect(won?.credential).toMatchObject({ roles: ["approver"], label: "Anna's laptop", revoked: 0 });
  expect((await infoOf(won?.token ?? "")).principal).toBe(won?.credential?.id);
  expect(await refusal(as("").signIn({ code }))).toMatchObject({
    code: Code.Unauthenticated,
    reason: "UNAUTHENTICATED",
  });
});

test("a sign-in from this machine records the user of the operating system that signs in", async () => {
  const uids = async () =>
    (await as("approver-token-for-tests").listCredentials({})).credentials.map(({ label, uid }) => [label, uid]);
  const own = process.getuid?.();
  const newCode = async () => (await as("approver-token-for-tests").createCode({})).code;
  const web = createClient(CredentialService, createGrpcWebTransport({ baseUrl: service.url, httpVersion: "1.1" }));
  await as("").signIn({ code: await newCode(), label: "by gRPC" });
  await web.signIn({ code: await newCode(), label: "by gRPC-Web" });
  await signInBrowser();
  const listed = await uids();
  expect(listed).toContainEqual(["by gRPC", own]);
  expect(listed).toContainEqual(["by gRPC-Web", own]);
  expect(listed).toContainEqual(["Firefox on Linux", own]);
  if (own !== 0) return;
  // Only root can act as another user.
  const request = { code: await newCode(), label: "by another user" };
  const url = `${service.url}/opencode.tool.v1.CredentialService/SignIn`;
  const post = `fetch(${JSON.stringify(url)}, { method: "POST", headers: { "content-type": "application/json" }, body: ${JSON.stringify(JSON.stringify(request))} })`;
  await once(spawn(process.execPath, ["-e", post], { uid: 65_534, cwd: "/" }), "exit");
  expect(await uids()).toContainEqual(["by another user", 65_534]);
});

test("SignIn refuses more than 4 KiB by every protocol", async () => {
  const path = `${service.url}/opencode.tool.v1.CredentialService/SignIn`;
  for (const type of ["application/json", "application/grpc-web+proto"]) {
    const response = await fetch(path, {
      method: "POST",
      headers: { "content-type": type },
      body: Buffer.concat([Buffer.from([0, 0, 0, 0x20, 0]), Buffer.alloc(8_192, 0x20)]),
    });
    const said = `${await response.text()} ${response.headers.get("grpc-status") ?? ""} ${response.headers.get("grpc-message") ?? ""}`;
    expect(said).toMatch(/resource_exhausted| 8 |grpc-status: 8/);
  }
});

test("approvers give the roles of programs, admins every role, others none", async () => {
  const attempt = async (token: string, roles: string[]) =>
    await as(token)
      .createToken({ roles, ...(roles.includes("worker") && { worker: { tools: ["ci_*"] } }) })
      .then(
        () => "created",
        async (error: unknown) => (await refusal(Promise.reject(error))).reason,
      );
  for (const role of ["caller", "host", "worker"]) {
    expect(await attempt("approver-token-for-tests", [role])).toBe("created");
    expect(await attempt("admin-token-for-tests", [role])).toBe("created");
  }
  for (const role of ["approver", "watcher", "admin"]) {
    expect(await attempt("approver-token-for-tests", [role])).toBe("ROLE_MISSING");
    expect(await attempt("approver-token-for-tests", ["caller", role])).toBe("ROLE_MISSING");
    expect(await attempt("admin-token-for-tests", [role])).toBe("created");
  }
  for (const token of ["caller-token-for-tests", "watcher-token-for-tests"])
    expect(await attempt(token, ["caller"])).toBe("ROLE_MISSING");
  expect(await attempt("approver-token-for-tests", ["root"])).toBe("INVALID_MESSAGE");
});

test("an approver does not revoke an admin", async () => {
  const { credential } = await as("admin-token-for-tests").createToken({ roles: ["admin"], label: "ops" });
  const id = credential?.id ?? "";
  expect(await refusal(as("approver-token-for-tests").revokeCredential({ id }))).toMatchObject({
    reason: "ROLE_MISSING",
  });
  expect((await as("admin-token-for-tests").revokeCredential({ id })).credential?.revoked).toBeGreaterThan(0);
  const missing = await refusal(as("admin-token-for-tests").revokeCredential({ id: "nobody" }));
  expect(missing).toMatchObject({ code: Code.NotFound, reason: "NO_SUCH_CREDENTIAL" });
});

test("a host and a worker call no tools here", async () => {
  for (const role of ["host", "worker"]) {
    const limits = role === "worker" ? { worker: { tools: ["ci_*"] } } : {};
    const { token } = await as("approver-token-for-tests").createToken({ roles: [role], ...limits });
    expect((await infoOf(token)).roles).toEqual([role]);
    expect(await refusal(clientOf(ToolService, service.url, token).callTool({ tool: "echo" }))).toMatchObject({
      reason: "ROLE_MISSING",
    });
  }
});

test("a token of a worker has limits and no other role", async () => {
  const worker = { tools: ["ci_*"], permissions: ["deploy_*"], calls: ["read"], idempotent: true };
  const { credential } = await as("approver-token-for-tests").createToken({ roles: ["worker"], worker });
  expect(credential?.worker).toMatchObject({ ...worker, pin: [] });
  const { credentials } = await as("approver-token-for-tests").listCredentials({});
  expect(credentials.find(({ id }) => id === credential?.id)?.worker).toMatchObject(worker);
  const refused = [
    [{ roles: ["worker", "caller"], worker }, "roles"],
    [{ roles: ["worker"] }, "worker.tools"],
    [{ roles: ["caller"], worker }, "worker"],
  ] as const;
  for (const [{ roles, ...limits }, field] of refused)
    expect(await refusal(as("approver-token-for-tests").createToken({ roles: [...roles], ...limits }))).toMatchObject({
      reason: "INVALID_MESSAGE",
      metadata: { field },
    });
});

test("a token acts only in its workspaces", async () => {
  const limited = await as("approver-token-for-tests").createToken({ roles: ["caller"], workspaces: ["elsewhere"] });
  const sessions = clientOf(SessionService, service.url, limited.token);
  expect(await refusal(sessions.createSession({}))).toMatchObject({ reason: "UNKNOWN_WORKSPACE" });
  const tools = clientOf(ToolService, service.url, limited.token);
  const requests = [
    () => tools.callTool({ tool: "echo" }),
    () => tools.listTools({}),
    () => tools.planTool({ tool: "echo" }),
  ];
  for (const request of requests) expect(await refusal(request())).toMatchObject({ reason: "UNKNOWN_WORKSPACE" });
  expect((await tools.getServerInfo({})).workspaces).toEqual([]);
  const here = await as("approver-token-for-tests").createToken({ roles: ["caller"], workspaces: ["default"] });
  expect((await clientOf(SessionService, service.url, here.token).createSession({})).session?.workspace).toBe(
    "default",
  );
  const overseer = as("admin-token-for-tests").createToken({ roles: ["approver"], workspaces: ["default"] });
  expect(await refusal(overseer)).toMatchObject({ reason: "INVALID_MESSAGE", metadata: { field: "workspaces" } });
});

test("the list names credentials without their hashes", async () => {
  const { token, credential } = await as("approver-token-for-tests").createToken({
    roles: ["caller"],
    agents: ["build"],
    label: "ci",
  });
  const { credentials } = await as("approver-token-for-tests").listCredentials({});
  expect(credentials.find(({ id }) => id === credential?.id)).toMatchObject({ label: "ci", agents: ["build"] });
  const { sha256 } = JSON.parse(await readFile(join(service.data, "credentials.json"), "utf8")).credentials.at(-1);
  expect(JSON.stringify(credentials)).not.toContain(sha256);
  expect(JSON.stringify(credentials)).not.toContain(token);
});

for (const store of ["SQLite", "Redis"]) {
  test(`on ${store} a revoked credential is refused at once, and its streams end`, async () => {
    const redis = store === "Redis" ? await startRedis() : undefined;
    if (redis) onTestFinished(() => redis.stop());
    const { url } = await startService({ settings: redis ? `store = "${redis.url}"\n` : "" });
    const person = clientOf(CredentialService, url, "approver-token-for-tests");
    const { code } = await person.createCode({});
    const { token, credential } = await person.signIn({ code });
    const frames = clientOf(PermissionService, url, token).watchPermissions({})[Symbol.asyncIterator]();
    await frames.next();
    const end = refusal(
      (async () => {
        while (!(await frames.next()).done);
      })(),
    );
    await person.revokeCredential({ id: credential?.id ?? "" });
    expect(await refusal(infoOf(token, url))).toMatchObject({ reason: "UNAUTHENTICATED" });
    expect(await end).toMatchObject({ code: Code.Unauthenticated, reason: "UNAUTHENTICATED" });
  });
}

test.each([
  ["of Connect", "application/json", (json: string) => Buffer.from(json)],
  [
    "of gRPC-Web",
    "application/grpc-web+json",
    (json: string) => Buffer.concat([Buffer.from([0, 0, 0, 0, json.length]), Buffer.from(json)]),
  ],
])("a request %s whose body comes after the end of its credential does nothing", async (_form, type, bodyOf) => {
  const admin = as("admin-token-for-tests");
  const { token, credential } = await admin.createToken({ label: "late", roles: ["caller"] });
  const body = bodyOf(JSON.stringify({ title: `late ${type}` }));
  const request = httpRequest(`${service.url}/opencode.tool.v1.SessionService/CreateSession`, {
    method: "POST",
    headers: {
      ...{ authorization: `Bearer ${token}`, "content-type": type },
      ...{ "content-length": body.length, expect: "100-continue" },
    },
  });
  const answered = once(request, "response");
  const taken = once(request, "continue");
  request.flushHeaders();
  await taken;
  request.write(body.subarray(0, 8));
  await admin.revokeCredential({ id: credential?.id ?? "" });
  request.end(body.subarray(8));
  const [response] = await answered;
  expect(await text(response)).toMatch(/unauthenticated|grpc-status: 16/);
  const { sessions } = await clientOf(SessionService, service.url, "admin-token-for-tests").listSessions({});
  expect(sessions.map(({ title }) => title)).not.toContain(`late ${type}`);
});

test("a name that was cut within a character is stored so that the next start reads it", async () => {
  const own = await startService();
  const { code } = await clientOf(CredentialService, own.url, "admin-token-for-tests").createCode({ newPerson: "" });
  const headers = { "content-type": "application/json", origin: own.url };
  const body = `{"code":"${code}","name":"Ann \\ud83d"}`;
  expect((await fetch(`${own.url}/console/sign-in`, { method: "POST", headers, body })).status).toBe(200);
  await own.stop();
  await own.start();
  const { people } = await clientOf(PersonService, own.url, "admin-token-for-tests").listPeople({});
  expect(people.map(({ person }) => person?.name)).toEqual(["Ann \ufffd"]);
});

test("the operator adds and revokes tokens in the table while the service runs", async () => {
  const env = { HOME: service.workspace };
  const table = ["--data", service.data];
  const created = await main(["token", "create", "--role", "approver", "--label", "phone", ...table], env);
  expect(created.code).toBe(0);
  const token = created.stdout.trim();
  const { principal } = await infoOf(token);
  expect(created.stderr).toContain(principal);
  expect((await main(["token", "list", ...table], env)).stdout).toContain(principal);
  expect((await main(["token", "revoke", principal, ...table], env)).stdout).toContain("revoked at");
  expect(await refusal(infoOf(token))).toMatchObject({ reason: "UNAUTHENTICATED" });
  expect(await main(["token", "create", "--role", "approver", "--data", "/no/such/place"], env)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("there is no data directory /no/such/place"),
  });
});

test("a person who is signed in and may write to the data directory creates another approver", async () => {
  const home = await mkdtemp(join(tmpdir(), "toolgate-operator-"));
  onTestFinished(() => rm(home, { recursive: true }));
  const { code } = await as("approver-token-for-tests").createCode({});
  const { token } = await as("").signIn({ code });
  // The sign-in at the address that a service has without options.
  saveLogin(defaultUrl, { storeId: "", id: "", token, expires: 0 }, { HOME: home });
  const env = { HOME: home, TOOLGATE_DATA: service.data };
  const created = await main(["token", "create", "--role", "approver"], env);
  expect(created).toMatchObject({ code: 0, stderr: expect.stringContaining(`in the table of ${service.data}`) });
  expect((await infoOf(created.stdout.trim())).roles).toEqual(["approver"]);
  const next = "or run it on the service's machine with --data DIR";
  for (const sent of [token, ""]) {
    const atService = { ...env, TOOLGATE_URL: service.url, TOOLGATE_TOKEN: sent };
    expect(await main(["token", "create", "--role", "approver"], atService)).toMatchObject({
      ...{ code: 6, stdout: "", stderr: expect.stringContaining(next) },
    });
  }
});

test("login stores a sign-in for this user alone, a new code signs in another terminal, and logout revokes it", async () => {
  const home = await mkdtemp(join(tmpdir(), "toolgate-login-"));
  onTestFinished(() => rm(home, { recursive: true }));
  const env = { HOME: home, TOOLGATE_URL: service.url };
  const { code } = await as("approver-token-for-tests").createCode({});
  expect(await toolgate(["login", `${service.url}/#code=${code}`], env)).toMatchObject({ code: 0 });
  const file = join(home, ".config/toolgate/credentials.json");
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  expect(await toolgate(["asks"], env)).toMatchObject({ code: 0 });

  const second = { ...env, XDG_CONFIG_HOME: join(home, "second") };
  const next = JSON.parse((await toolgate(["login", "--new-code", "--json"], env)).stdout).code;
  expect(await toolgate(["login", next], second)).toMatchObject({ code: 0 });
  expect(await toolgate(["login", next], second)).toMatchObject({
    code: 6,
    stderr: expect.stringContaining("get a new"),
  });

  expect(await toolgate(["token", "list"], second)).toMatchObject({ code: 0 });
  const { token } = JSON.parse(await readFile(file, "utf8")).logins[0];
  expect(await toolgate(["logout"], env)).toMatchObject({ code: 0 });
  expect(await refusal(infoOf(token))).toMatchObject({ reason: "UNAUTHENTICATED" });
  expect(await toolgate(["asks"], env)).toMatchObject({ code: 6, stderr: expect.stringContaining("not signed in") });
  expect(await toolgate(["asks"], second)).toMatchObject({ code: 0 });
});

test("a logout that does not reach the service keeps the sign-in, which can then be revoked", async () => {
  const own = await startService();
  const home = await mkdtemp(join(tmpdir(), "toolgate-logout-"));
  onTestFinished(() => rm(home, { recursive: true }));
  const { code } = await clientOf(CredentialService, own.url, "approver-token-for-tests").createCode({});
  const env = () => ({ HOME: home, TOOLGATE_URL: own.url });
  expect(await toolgate(["login", `${own.url}/#code=${code}`], env())).toMatchObject({ code: 0 });
  const file = join(home, ".config/toolgate/credentials.json");
  const stored = await readFile(file, "utf8");
  const { server, token } = JSON.parse(stored).logins[0];
  await own.kill();
  expect((await toolgate(["logout"], env())).code).not.toBe(0);
  expect(await readFile(file, "utf8")).toBe(stored);

  await own.start();
  // It listens elsewhere now.
  await writeFile(file, stored.replace(server, own.url));
  const signedOut = { code: 0, stderr: expect.stringContaining("signed out") };
  expect(await toolgate(["logout"], env())).toMatchObject(signedOut);
  expect(JSON.parse(await readFile(file, "utf8")).logins).toEqual([]);
  expect(await refusal(infoOf(token, own.url))).toMatchObject({ reason: "UNAUTHENTICATED" });
  await writeFile(file, stored.replace(server, own.url));
  expect(await toolgate(["logout"], env()), "of a sign-in that ended meanwhile").toMatchObject(signedOut);
});

test("a logout keeps the sign-in of another store that was served at the address, and revokes that of this one", async () => {
  const home = await mkdtemp(join(tmpdir(), "toolgate-logout-"));
  onTestFinished(() => rm(home, { recursive: true }));
  const env = { HOME: home, TOOLGATE_URL: service.url };
  const { code } = await as("approver-token-for-tests").createCode({});
  expect(await toolgate(["login", `${service.url}/#code=${code}`], env)).toMatchObject({ code: 0 });
  const file = join(home, ".config/toolgate/credentials.json");
  const [here] = JSON.parse(await readFile(file, "utf8")).logins;
  const there = { ...here, storeId: "another", token: "token-of-another-store" };
  for (const logins of [
    [there, here],
    [here, there],
  ]) {
    await writeFile(file, JSON.stringify({ logins }));
    expect(await toolgate(["logout"], env)).toMatchObject({ code: 0 });
    expect(JSON.parse(await readFile(file, "utf8")).logins).toEqual([there]);
    expect(await refusal(infoOf(here.token))).toMatchObject({ reason: "UNAUTHENTICATED" });
    const next = await as("approver-token-for-tests").createCode({});
    expect(await toolgate(["login", `${service.url}/#code=${next.code}`], env)).toMatchObject({ code: 0 });
    Object.assign(here, JSON.parse(await readFile(file, "utf8")).logins.at(-1));
  }
});

test("a tool reads neither the table nor the stored sign-ins", async () => {
  const { session } = await clientOf(SessionService, service.url, "caller-token-for-tests").createSession({
    agent: "free",
  });
  const sessionId = session?.id ?? "";
  const login = join(service.data, "../.config/toolgate/credentials.json");
  for (const filePath of [join(service.data, "credentials.json"), login]) {
    const { part } = await clientOf(ToolService, service.url, "caller-token-for-tests").callTool({
      ...{ sessionId, tool: "read", waitMs: 60_000 },
      input: { filePath },
    });
    expect(part?.state.value).toMatchObject({ error: expect.stringContaining("which no tool may touch") });
  }
});

/** Signs a browser in as the console does. */
async function signInBrowser(origin: string | undefined = service.url, type = "application/json") {
  const { code } = await as("approver-token-for-tests").createCode({});
  const headers = {
    "content-type": type,
    ...(origin !== "" && { origin }),
    "user-agent": "Mozilla Firefox/140 (X11; Linux)",
  };
  const response = await fetch(`${service.url}/console/sign-in`, {
    method: "POST",
    headers,
    body: JSON.stringify({ code }),
  });
  const answer = (await response.json()) as { pageKey?: string; message?: string };
  return { status: response.status, cookie: response.headers.get("set-cookie") ?? "", ...answer };
}

function asBrowser(path: string, headers: Record<string, string>) {
  return fetch(`${service.url}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: "{}",
  });
}
const getServerInfo = "/opencode.tool.v1.ToolService/GetServerInfo";

test("a browser gets half of its token in a cookie that no script reads, and needs both halves", async () => {
  const { status, cookie, pageKey = "" } = await signInBrowser();
  expect(status).toBe(200);
  expect(cookie).toMatch(/^toolgate-[0-9a-f]{12}=[\w-]{43}; Path=\/; Max-Age=2592000; HttpOnly; SameSite=Strict$/);
  const [pair = ""] = cookie.split(";");
  const page = { origin: service.url, cookie: pair, "toolgate-page-key": pageKey };
  const response = await asBrowser(getServerInfo, page);
  expect(await response.json()).toMatchObject({
    principal: expect.stringMatching(/^firefox-on-linux-/),
    roles: ["approver"],
  });
  for (const part of [
    { ...page, cookie: "" },
    { ...page, "toolgate-page-key": "" },
  ])
    expect((await asBrowser(getServerInfo, part)).status).toBe(401);
});

test("over HTTP/2 a browser's unary and streaming requests are checked by the host that it names", async () => {
  const { cookie, pageKey = "" } = await signInBrowser();
  const [pair = ""] = cookie.split(";");
  const session = connectHttp2(service.url);
  onTestFinished(() => session.destroy());
  const isRefused = async (path: string, type: string, body: Buffer, origin: string) => {
    const headers = { "content-type": type, origin, cookie: pair, "toolgate-page-key": pageKey };
    const stream = session.request({ ":method": "POST", ":path": path, ...headers });
    stream.end(body);
    const [begin] = await once(stream, "data");
    stream.close();
    return String(begin).includes("permission_denied");
  };
  const watch = "/opencode.tool.v1.PermissionService/WatchPermissions";
  const frame = Buffer.from([0, 0, 0, 0, 2, 0x7b, 0x7d]);
  for (const [origin, refused] of [
    [service.url, false],
    ["http://127.0.0.1:1", true],
  ] as const) {
    expect(await isRefused(getServerInfo, "application/json", Buffer.from("{}"), origin)).toBe(refused);
    expect(await isRefused(watch, "application/connect+json", frame, origin)).toBe(refused);
  }
});

test("over https the cookie is sent only over https", async () => {
  const { cookie } = await signInBrowser(service.url.replace("http:", "https:"));
  expect(cookie).toContain("; Secure");
});

test("pages of other origins can neither sign in nor use the sign-in", async () => {
  for (const origin of ["https://evil.example", "http://127.0.0.1:1", "null", ""])
    expect(await signInBrowser(origin)).toMatchObject({
      status: 403,
      message: expect.stringContaining("pages of this service"),
    });
  expect((await signInBrowser(service.url, "text/plain")).status).toBe(400);

  const { cookie, pageKey = "" } = await signInBrowser();
  const [pair = ""] = cookie.split(";");
  const halves = { cookie: pair, "toolgate-page-key": pageKey };
  for (const origin of [{ origin: "https://evil.example" }, { origin: "http://127.0.0.1:1" }, {}]) {
    const response = await asBrowser(getServerInfo, { ...halves, ...origin });
    expect({ status: response.status, body: await response.text() }).toMatchObject({
      status: 403,
      body: expect.stringContaining("ORIGIN_REFUSED"),
    });
  }
});

test("signing out revokes the browser's credential and removes the cookie", async () => {
  const { cookie, pageKey = "" } = await signInBrowser();
  const [pair = ""] = cookie.split(";");
  const page = { origin: service.url, cookie: pair, "toolgate-page-key": pageKey };
  const response = await asBrowser("/console/sign-out", page);
  expect(response.headers.get("set-cookie")).toContain("Max-Age=0");
  expect((await asBrowser(getServerInfo, page)).status).toBe(401);
});
