import { randomUUID } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { AnswerMethod } from "../../gen/opencode/tool/v1/permission_pb.ts";
import type { Principal, Role } from "../../src/core/principal.ts";
import { credentialOf, hashOfSecret, recordOf } from "../../src/people/credential.ts";
import type { CredentialTable } from "../../src/people/ports.ts";
import { openCredentialFile } from "../../src/store/credential-file.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { quiet } from "../store/redis-store.ts";
import { credentialsOver } from "./credentials.ts";

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

/** Opens the same table as often as it is called, as replicas and commands do. */
type OpenTable = () => Promise<CredentialTable>;

async function newFile(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-credentials-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  return join(folder, "credentials.json");
}

const tables: Record<string, () => Promise<OpenTable>> = {
  async file() {
    const file = await newFile();
    return async () => openCredentialFile(file);
  },
  async Redis() {
    const prefix = randomUUID();
    return async () => {
      const { credentials, calls } = await openRedisStore({ url: redis.url, prefix, log: quiet });
      onTestFinished(() => calls.close());
      return credentials;
    };
  },
};

const operator: Principal = {
  ...{ id: "operator", roles: new Set(["admin"]), agents: ["*"], workspaces: ["*"] },
  lineage: ["operator"],
  answersOwn: false,
};
const rights = { roles: ["approver"] as const, agents: ["*"], workspaces: ["*"] };
const fields = { label: "Anna's phone", expires: 0 };
const digest = (token: string) => Buffer.from(hashOfSecret(token), "hex");
const day = 86_400_000;

describe.each(Object.entries(tables))("the table in %s", (_name, newTable) => {
  async function open() {
    const openTable = await newTable();
    let time = Date.now();
    const now = () => time;
    return {
      credentials: credentialsOver(await openTable(), now),
      other: async () => credentialsOver(await openTable(), now),
      table: openTable,
      pass(ms: number) {
        time += ms;
      },
    };
  }

  test("a token acts with the rights of its record, of which only the hash is stored", async () => {
    const { credentials, table } = await open();
    const { token, credential } = await credentials.create(operator, rights, fields);
    expect(credential.id).toMatch(/^anna-s-phone-[0-9a-z]{8}$/);
    expect(credentials.principalOf(digest(token))).toMatchObject({ id: credential.id, roles: new Set(["approver"]) });
    const stored = (await table()).current();
    expect(stored).toEqual([credential]);
    expect(JSON.stringify(stored)).not.toContain(token);
    expect(credentials.principalOf(digest(`${token}x`))).toBeUndefined();
  });

  test("a revoked credential is refused at once, and its streams end", async () => {
    const { credentials } = await open();
    const { token, credential } = await credentials.create(operator, rights, fields);
    const principal = credentials.principalOf(digest(token));
    await credentials.revoke(credential.id);
    expect(credentials.principalOf(digest(token))).toBeUndefined();
    expect(principal?.ended?.aborted).toBe(true);
    await expect(credentials.revoke("nobody")).rejects.toThrow('there is no credential "nobody"');
  });

  test("another replica knows new and revoked credentials after a refresh", async () => {
    const { credentials, other } = await open();
    const replica = await other();
    const { token, credential } = await credentials.create(operator, rights, fields);
    await replica.refresh();
    const principal = replica.principalOf(digest(token));
    expect(principal?.id).toBe(credential.id);
    await credentials.revoke(credential.id);
    await replica.refresh();
    expect(replica.principalOf(digest(token))).toBeUndefined();
    expect(principal?.ended?.aborted).toBe(true);
  });

  test("an expired credential is refused, and its streams end with the next refresh", async () => {
    const { credentials, pass } = await open();
    const { code } = credentials.createCode();
    const { token } = await credentials.signIn({ code, label: "Firefox" });
    const principal = credentials.principalOf(digest(token));
    pass(30 * day - 1);
    expect(credentials.principalOf(digest(token))).toBe(principal);
    pass(1);
    expect(credentials.principalOf(digest(token))).toBeUndefined();
    await credentials.refresh();
    expect(principal?.ended?.aborted).toBe(true);
  });

  test("an ended credential is removed after 30 days", async () => {
    const { credentials, pass } = await open();
    const { credential } = await credentials.create(operator, rights, fields);
    await credentials.create(operator, rights, { label: "stays", expires: 0 });
    await credentials.revoke(credential.id);
    pass(30 * day - 1);
    await credentials.refresh();
    expect(credentials.list()).toHaveLength(2);
    pass(1);
    await credentials.refresh();
    expect(credentials.list().map(({ label }) => label)).toEqual(["stays"]);
  });

  test("of two racing exchanges of one code exactly one gets a credential", async () => {
    const { credentials } = await open();
    const { code } = credentials.createCode();
    const results = await Promise.allSettled(["a", "b"].map((label) => credentials.signIn({ code, label })));
    expect(results.map(({ status }) => status).toSorted()).toEqual(["fulfilled", "rejected"]);
    expect(credentials.list()).toHaveLength(1);
  });

  test("a code is refused after 10 minutes", async () => {
    const { credentials, pass } = await open();
    const { code } = credentials.createCode();
    pass(600_000);
    await expect(credentials.signIn({ code, label: "late" })).rejects.toThrow("older than 10 minutes");
    expect(credentials.list()).toEqual([]);
  });

  test("a code gives no credential that ends later than that of its creator", async () => {
    const { credentials, pass } = await open();
    const { token, credential } = await credentials.create(operator, rights, {
      label: "week",
      expires: Date.now() + 7 * day,
    });
    pass(day);
    const { code } = credentials.createCode(credentials.principalOf(digest(token)));
    const device = await credentials.signIn({ code, label: "phone" });
    expect(device.credential).toMatchObject({ roles: ["approver"], expires: credential.expires });
  });

  test("a code ends with the sign-in that made it", async () => {
    const { credentials } = await open();
    const { token, credential } = await credentials.create(operator, rights, fields);
    const { code } = credentials.createCode(credentials.principalOf(digest(token)));
    await credentials.revoke(credential.id);
    await expect(credentials.signIn({ code, label: "thief" })).rejects.toThrow();
    expect(credentials.list().filter(({ revoked }) => revoked === 0)).toEqual([]);
  });

  test("every replica knows the person and the ancestors of a credential; one without issuer is a person by itself", async () => {
    const { credentials, other, table } = await open();
    const rightsOf = (roles: readonly Role[]) => ({ ...rights, roles });
    const root = await credentials.create(operator, rightsOf(["admin"]), fields);
    const { code } = credentials.createCode(credentials.principalOf(digest(root.token)));
    const device = await credentials.signIn({ code, label: "device" });
    const issuer = credentials.principalOf(digest(device.token)) ?? operator;
    const agent = await credentials.create(issuer, rightsOf(["caller"]), fields);
    const old = credentialOf("old", "token-of-an-earlier-version", rights, { label: "", created: 1 });
    await (await table()).add(old);
    const replica = await other();
    const lineageOf = (token: string) => replica.principalOf(digest(token))?.lineage;
    expect(lineageOf(root.token)).toEqual([root.credential.id, "operator"]);
    expect(lineageOf(device.token)).toEqual([root.credential.id, "operator"]);
    expect(lineageOf(agent.token)).toEqual([agent.credential.id, root.credential.id, "operator"]);
    expect(lineageOf("token-of-an-earlier-version")).toEqual(["old"]);
  });

  test("a sign-in with a token's code, and a device that it adds, prove and may do no more than the token", async () => {
    const { table } = await open();
    const named = {
      ...{ id: "ann", roles: ["approver"] as const, agents: ["*"], workspaces: ["*"] },
      ...{ sha256: hashOfSecret("ann-token"), person: { issuer: "https://id.example", subject: "ann" } },
    };
    const credentials = credentialsOver(await table(), Date.now, () => [named]);
    let token = "ann-token";
    for (const label of ["browser", "phone"]) {
      const { code } = credentials.createCode(credentials.principalOf(digest(token)));
      ({ token } = await credentials.signIn({ code, label }));
      expect(credentials.principalOf(digest(token))).toMatchObject({
        ...{ roles: new Set(["approver"]), lineage: ["ann"] },
        identity: { person: { issuer: "https://id.example", subject: "ann" }, method: AnswerMethod.TOKEN },
      });
    }
    expect(credentials.list().map((each) => recordOf(each).method)).toEqual([AnswerMethod.TOKEN, AnswerMethod.TOKEN]);
  });

  test("changes of two processes at the same time are all stored", async () => {
    const { table } = await open();
    const writers = (await Promise.all([table(), table()])).map((each) => credentialsOver(each, Date.now));
    await Promise.all(writers.flatMap((each) => [1, 2, 3].map(() => each.create(operator, rights, fields))));
    expect((await table()).current()).toHaveLength(6);
  });
});

test("failed sign-ins are limited, and a valid code is accepted all the same", async () => {
  let time = 0;
  const credentials = credentialsOver(openCredentialFile(await newFile()), () => time);
  const { code } = credentials.createCode();
  const refusals: string[] = [];
  for (let i = 0; i < 11; i++)
    await credentials.signIn({ code: "guess", label: "" }).catch((error: Error) => refusals.push(error.message));
  expect(refusals[9]).toContain("the code is unknown");
  expect(refusals[10]).toContain("more than 10 sign-ins failed within a minute");
  expect(await credentials.signIn({ code, label: "me" })).toMatchObject({ credential: { roles: ["approver"] } });
  time = 60_000;
  await expect(credentials.signIn({ code, label: "" })).rejects.toThrow("the code is unknown");
});

test("a link in the place of a new file is replaced, and what it leads to stays as it is", async () => {
  const file = await newFile();
  const victim = `${file}.victim`;
  await writeFile(victim, "victim");
  await symlink(victim, `${file}.${process.pid}.new`);
  await credentialsOver(openCredentialFile(file), Date.now).create(operator, rights, fields);
  expect(await readFile(victim, "utf8")).toBe("victim");
  expect(credentialsOver(openCredentialFile(file), Date.now).list()).toHaveLength(1);
});

test("the file is readable by its owner only, and no other file is left", async () => {
  const file = await newFile();
  await credentialsOver(openCredentialFile(file), Date.now).create(operator, rights, fields);
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  expect(await readdir(join(file, ".."))).toEqual(["credentials.json"]);
});

test("a file that is no table is refused at the start; while it is served no credential of it is accepted", async () => {
  const file = await newFile();
  const problems: string[] = [];
  const credentials = credentialsOver(openCredentialFile(file, { report: (each) => problems.push(each) }), Date.now);
  const { token } = await credentials.create(operator, rights, fields);
  const before = await readFile(file, "utf8");
  await writeFile(file, "{");
  expect(credentials.principalOf(digest(token))).toBeUndefined();
  credentials.principalOf(digest(token));
  expect(problems).toEqual([expect.stringContaining("is not a table of credentials")]);
  expect(() => openCredentialFile(file)).toThrow("restore it, or remove it and sign in again");
  await expect(credentials.create(operator, rights, fields)).rejects.toThrow("is not a table of credentials");
  expect(await readFile(file, "utf8")).toBe("{");
  await writeFile(file, before);
  expect(credentials.principalOf(digest(token))).toBeDefined();
});

test("a configured token ends when it is removed or gets other rights, and goes on if the configuration is only read again", async () => {
  const tokenOf = (id: string, roles: readonly Role[]) => ({
    ...{ id, roles, agents: ["*"], workspaces: ["*"] },
    sha256: hashOfSecret(id),
  });
  const first = [tokenOf("stays", ["caller"]), tokenOf("changes", ["approver"]), tokenOf("goes", ["caller"])];
  let configured = first;
  const credentials = credentialsOver(openCredentialFile(await newFile()), Date.now, () => configured);
  const [stays, changes, goes] = first.map(({ id }) => credentials.principalOf(digest(id)));
  configured = [tokenOf("stays", ["caller"]), tokenOf("changes", ["caller"])];
  credentials.endInvalid();
  expect([stays, changes, goes].map((each) => each?.ended?.aborted)).toEqual([false, true, true]);
  expect(credentials.principalOf(digest("changes"))).toMatchObject({ roles: new Set(["caller"]) });
  expect(credentials.principalOf(digest("goes"))).toBeUndefined();
});
