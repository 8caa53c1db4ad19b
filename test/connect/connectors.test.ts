import { randomUUID } from "node:crypto";
import { mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { createConnectors } from "../../src/agents/connect/connectors.ts";
import { openRecordTable, type RecordTables, recordKinds } from "../../src/store/record-tables.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { type RedisServers, startRedis } from "../store/redis-server.ts";
import { quiet } from "../store/redis-store.ts";

let redis: RedisServers;
beforeAll(async () => {
  redis = await startRedis();
});
afterAll(() => redis.stop());

async function newDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "toolgate-connectors-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  return directory;
}

/** Opens the same table as often as it is called: as replicas do, and as a restart does. */
const tables: Record<string, () => Promise<() => Promise<RecordTables["connectors"]>>> = {
  async file() {
    const directory = await newDirectory();
    return async () => openRecordTable(directory, recordKinds.connectors);
  },
  async Redis() {
    const prefix = randomUUID();
    return async () => {
      const { connectors, calls } = await openRedisStore({ url: redis.url, prefix, log: quiet });
      onTestFinished(() => calls.close());
      return connectors;
    };
  },
};

const claude = {
  ...{ kind: "claude", place: "ann@laptop", mcpName: "tg_1f", uid: 1000, enforced: true, systemLevel: true },
  files: ["/home/ann/.claude/settings.json", "/home/ann/.config/toolgate/connect/claude.json"],
};

describe.each(Object.entries(tables))("the table of connectors in %s", (_name, newTable) => {
  test("a connector survives a restart and protects its files until it is removed", async () => {
    const openTable = await newTable();
    const connectors = createConnectors(await openTable(), () => 5);
    const registered = await connectors.register(claude, "anna");
    expect(registered).toMatchObject({ ...claude, created: 5, registeredBy: "anna" });
    expect(connectors.files()).toEqual(claude.files);

    const restarted = createConnectors(await openTable(), () => 6);
    expect(restarted.list()).toEqual([registered]);
    expect(restarted.files()).toEqual(claude.files);
    expect(await restarted.unregister(registered.id)).toEqual(registered);
    expect(restarted.files()).toEqual([]);
    await expect(restarted.unregister(registered.id)).rejects.toThrow(`there is no connector "${registered.id}"`);
    expect((await openTable()).current()).toEqual([]);
  });

  test("the same kind and place is one connector, and another place is a second one", async () => {
    const connectors = createConnectors(await (await newTable())(), () => 5);
    const [first, again, other] = [
      await connectors.register(claude, "anna"),
      await connectors.register({ ...claude, files: ["/home/ann/other.json"] }, "anna"),
      await connectors.register({ ...claude, place: "ann@desk" }, "anna"),
    ];
    expect(again.id).toBe(first.id);
    expect(other.id).not.toBe(first.id);
    expect(connectors.list()).toHaveLength(2);
    expect(connectors.files().toSorted()).toEqual(["/home/ann/other.json", ...claude.files].toSorted());
  });

  test("a list that did not change is the same array, so that policy folds its paths once", async () => {
    const connectors = createConnectors(await (await newTable())(), () => 5);
    await connectors.register(claude, "anna");
    const files = connectors.files();
    await connectors.refresh();
    expect(connectors.files()).toBe(files);
  });
});

test("another replica on the same Redis protects the files after its next refresh", async () => {
  const openTable = await tables.Redis?.();
  if (openTable === undefined) throw new Error("no table");
  const [here, there] = [createConnectors(await openTable(), () => 5), createConnectors(await openTable(), () => 5)];
  const { id } = await here.register(claude, "anna");
  await there.refresh();
  expect(there.files()).toEqual(claude.files);
  await here.unregister(id);
  await there.refresh();
  expect(there.files()).toEqual([]);
});

test("the file is readable only by its owner, and one that is no table is refused with the next step", async () => {
  const directory = await newDirectory();
  const file = join(directory, "connectors.json");
  await createConnectors(openRecordTable(directory, recordKinds.connectors), () => 5).register(claude, "anna");
  expect((await stat(file)).mode & 0o777).toBe(0o600);
  expect(await readFile(file, "utf8")).toContain('"kind": "claude"');
  await writeFile(file, '{"connectors": [{"kind": 5}]}');
  expect(() => openRecordTable(directory, recordKinds.connectors)).toThrow(
    /is not a table of connectors .* run `toolgate connect` again/,
  );
});
