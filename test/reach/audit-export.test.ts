import { appendFile, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { expect, onTestFinished, test } from "vitest";
import { type AuditEntry, DecisionRecordSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type AuditReceiver, createAuditExport, createFileReceiver } from "../../src/reach/audit-export.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import { shareOf } from "../breadth.ts";
import { toolgate } from "../cli/toolgate.ts";
import { connect } from "../e2e/clients.ts";
import { startService } from "../e2e/service.ts";
import { startRedis } from "../store/redis-server.ts";
import { startProvider } from "./provider.ts";

async function newFolder(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-export-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  return folder;
}

// A lease of the killed replica on Redis lasts 30 s.
test.each(shareOf(["SQLite", "Redis"], ["SQLite"]))(
  "the audit reaches a receiver and a file at least once and in order over a kill -9 on %s, and delays no call",
  async (store) => {
    const folder = await newFolder();
    const redis = store === "Redis" ? await startRedis() : undefined;
    if (redis) onTestFinished(redis.stop);
    // The first batch is never answered, so that the kill is between its delivery and the cursor.
    const receiver = await startProvider([[0], [204]]);
    const disk = join(folder, "audit.jsonl");
    await writeFile(join(folder, "token"), "siem-secret\n");
    const rules = '[permission.bash]\n"*" = "deny"\n';
    const top = redis ? `store = "${redis.url}"\n` : "";
    const service = await startService({ settings: top + rules });
    const agent = connect(service, "caller");
    const sessionId = await agent.newSession();
    const denied = async (callId: string) => {
      const { part } = await connect(service, "caller").tools.callTool({
        ...{ sessionId, callId, tool: "bash", input: { command: "true" }, waitMs: 60_000 },
      });
      expect(part?.state.case).toBe("error");
    };
    // Recorded before there was a receiver.
    await denied("c0");
    await service.stop();
    await service.configure(
      `${top}[audit_export.siem]\nurl = "${receiver.url}"\nsecret_file = "${join(folder, "token")}"\n[audit_export.disk]\nfile = "${disk}"\n${rules}`,
    );
    await service.start();
    await expect.poll(() => receiver.received.length, { timeout: 20_000 }).toBe(1);
    await denied("c1");
    await service.kill();
    // What a kill in the middle of a write leaves.
    await appendFile(disk, '{"seq":"99","con');
    await service.start();
    await denied("c2");

    const exported = (text: string) =>
      text
        .split("\n")
        .filter((line) => line.includes(`"rootSessionId":"${sessionId}"`))
        .map((line) => JSON.parse(line).record.callId as string);
    const posted = () => receiver.received.map(({ body }) => body).join("");
    await expect.poll(async () => exported(await readFile(disk, "utf8"))).toContain("c2");
    await expect.poll(() => exported(posted())).toContain("c2");
    expect(exported(receiver.received[0]?.body ?? "")).toEqual(["c0"]);
    expect(exported(posted())).toEqual(["c0", "c0", "c1", "c2"]);
    expect(new Set(exported(await readFile(disk, "utf8")))).toEqual(new Set(["c0", "c1", "c2"]));
    expect(receiver.received[0]?.headers).toMatchObject({
      ...{ authorization: "Bearer siem-secret", "content-type": "application/x-ndjson" },
    });

    await writeFile(join(folder, "posted.jsonl"), posted());
    const [first, ...later] = (await readFile(disk, "utf8")).trimEnd().split("\n");
    await writeFile(join(folder, "later.jsonl"), `${later.join("\n")}\n`);
    await writeFile(join(folder, "first.jsonl"), `${first}\n`);
    for (const files of [["posted.jsonl"], ["later.jsonl", "first.jsonl", "posted.jsonl"]])
      expect(await toolgate(["audit", "verify", ...files.map((file) => join(folder, file))], {})).toMatchObject({
        ...{ code: 0, stderr: expect.stringContaining("are unchanged") },
      });
    const environment = { TOOLGATE_URL: service.url, TOOLGATE_TOKEN: "approver-token-for-tests" };
    await expect
      .poll(async () => (await toolgate(["doctor"], environment)).stdout, { timeout: 20_000 })
      .toMatch(/ok +audit +exported, 0/);
  },
);

/** Receivers that note what they get; the answers come first. */
async function start(answers: readonly boolean[] = []) {
  const folder = await newFolder();
  let time = Date.now();
  const store = await openSqliteStore({ directory: join(folder), clock: () => time, receivers: ["siem"] });
  const batches: string[] = [];
  const receive: AuditReceiver = async (lines) => {
    batches.push(lines);
    return (answers[batches.length - 1] ?? true) ? undefined : { why: "it answered 503", next: "start it" };
  };
  const logged: string[] = [];
  const write = (message: string) => void logged.push(message);
  const chains = new Map<string, AuditEntry[]>();
  const exporter = createAuditExport({
    ...{ store: store.exports, receivers: new Map([["siem", receive]]), replicaId: "replica_1", now: () => time },
    listDecisions: async ({ root, afterSeq, limit }) =>
      chains.get(root)?.filter(({ seq }) => Number(seq) > afterSeq) ??
      (await store.permissions.listDecisions({ root, afterSeq, limit })),
    log: { debug: write, info: write, warn: write, error: write },
  });
  onTestFinished(async () => {
    await exporter.close();
    await store.calls.close();
  });
  return {
    ...{ store, batches, logged, chains, exporter },
    advance(ms: number) {
      time += ms;
    },
    record: (root: string, digest: string) =>
      store.permissions.recordDecisions(root, [create(DecisionRecordSchema, { sessionId: root, digest })]),
    /** Waits for a fact, while the export looks for records. */
    until: (fact: () => unknown) =>
      expect
        .poll(() => {
          exporter.tick();
          return fact();
        })
        .toBeTruthy(),
  };
}

const digestsIn = (lines: string) =>
  lines
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line).record.digest as string);

test("a batch that a receiver refuses is sent again after a pause, and nothing before it", async () => {
  const { record, batches, until, advance, exporter, logged } = await start([false]);
  await record("ses_a", "a1");
  await until(() => exporter.counts().get("siem")?.failed === 1);
  await record("ses_a", "a2");
  advance(999);
  exporter.tick();
  expect(batches.map(digestsIn)).toEqual([["a1"]]);
  advance(1);
  await until(() => exporter.counts().get("siem")?.exported === 2);
  expect(batches.map(digestsIn)).toEqual([["a1"], ["a1", "a2"]]);
  expect(logged).toEqual(["the audit was not exported to siem and waits: it answered 503. Next: start it"]);
});

test("a batch is bounded, whatever waits", async () => {
  const { record, batches, until, exporter } = await start();
  const digests = Array.from({ length: 5 }, (_, index) => `${index}${"x".repeat(400_000)}`);
  for (const digest of digests) await record("ses_a", digest);
  await until(() => exporter.counts().get("siem")?.exported === 5);
  expect(batches.map((lines) => digestsIn(lines).length)).toEqual([2, 2, 1]);
  expect(batches.flatMap(digestsIn)).toEqual(digests);
});

test("a chain that the store lost in part and wrote again is exported again", async () => {
  const { store, record, batches, until, chains, exporter, logged } = await start();
  for (const digest of ["a1", "a2"]) await record("ses_a", digest);
  await until(() => exporter.counts().get("siem")?.exported === 2);
  // The chain of another store has other hashes behind the same number.
  for (const digest of ["b1", "b2", "b3"]) await record("ses_b", digest);
  const other = await store.permissions.listDecisions({ root: "ses_b", afterSeq: 0, limit: 10 });
  chains.set("ses_a", other);
  await record("ses_a", "a3");
  await until(() => (batches.at(-1) ?? "").includes('"b1"') && exporter.counts().get("siem")?.exported === 8);
  expect(logged).toContainEqual(expect.stringContaining("has lost records of the audit that were exported"));
});

test("records that retention removed before a receiver accepted them are logged, with the next step", async () => {
  const { store, record, until, advance, exporter, logged } = await start(Array(50).fill(false));
  await record("ses_a", "a1");
  await until(() => exporter.counts().get("siem")?.failed === 1);
  advance(431 * 86_400_000);
  await store.calls.sweep();
  await until(() => exporter.counts().get("siem")?.lost === 1);
  expect(logged).toContainEqual(
    "1 records of the audit were removed at audit_max_days before siem accepted them. Next: correct its address or file, or raise audit_max_days",
  );
});

test("a file that cannot be written is a failure with its reason", async () => {
  const folder = await newFolder();
  const failure = await createFileReceiver(join(folder, "none", "audit.jsonl"))("{}\n", AbortSignal.timeout(10_000));
  expect(failure?.why).toContain("ENOENT");
});
