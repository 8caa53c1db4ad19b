import { randomUUID } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { whenReady } from "../../src/store/redis/client.ts";
import { createConnection, evaluateScript } from "../../src/store/redis/connection.ts";
import { createKeys } from "../../src/store/redis/keys.ts";
import type { Link, StepKeys } from "../../src/store/redis/link.ts";
import { type Reply, replyList } from "../../src/store/redis/reply.ts";
import { loadScripts, readNames, type StepName, stepNames } from "../../src/store/redis/scripts.ts";
import { openRedisStore } from "../../src/store/redis/store.ts";
import { parseRedisUrl } from "../../src/store/redis/url.ts";
import { everyStep, storeContract } from "./contract.ts";
import { startCuttingProxy } from "./cutting-proxy.ts";
import { startRedis } from "./redis-server.ts";
import { openIn, quiet } from "./redis-store.ts";

const server = await startRedis();
const [{ path: socket }] = server.nodes as [{ path: string }];
const proxy = await startCuttingProxy(`${socket}.proxy`, socket);
const redis = new Redis({ path: socket });

afterAll(async () => {
  redis.disconnect();
  await proxy.close();
  await server.stop();
});

const folder = join(import.meta.dirname, "../../src/store/redis/scripts");
const files = readdirSync(folder).map((file) => file.replace(".lua", ""));
const steps = files.filter((name) => name !== "prelude" && !name.startsWith("read_")).concat("refuse_ask");
/** Scripts whose answer is stored under the id of the operation, or with their call. */
const isTransition = (name: string) =>
  name === "refuse_ask" || /^-- KEYS +op,|answer_of\(/m.test(readFileSync(join(folder, `${name}.lua`), "utf8"));
const transitions = steps.filter(isTransition).sort();
/** Scripts that run before the store is open, or after a failover or a restore. */
const ofLink = [
  ...["adopt_clock", "agree_on_clock", "agree_on_format", "agree_on_history", "announce_replica"],
  ...["check_counter", "confirm_grant", "expect_copies", "raise_counter", "set_store_id", "shift_tree"],
];
/** Scripts of the tables of records, which redis-news.test.ts sends twice. */
const ofTables = ["change_record"];
/** Scripts that are repeatable without an operation id, except those of the link and of tables. */
const repeatable = steps.filter((name) => !isTransition(name) && !ofLink.concat(ofTables).includes(name)).sort();

test("loads every script and no other", () => {
  expect([...stepNames].sort()).toEqual(steps.sort());
  expect([...readNames, "prelude"].sort()).toEqual(files.filter((name) => !steps.includes(name)).sort());
  expect(transitions).toContain("settle_ask");
});

test.each(files.filter((name) => name !== "prelude"))("%s.lua documents its keys, arguments and output", (name) => {
  const text = readFileSync(join(folder, `${name}.lua`), "utf8");
  expect(text).toMatch(new RegExp(`^-- ${name}: .+`));
  expect(text).toMatch(/^-- KEYS +\S/m);
  expect(text).toMatch(/^-- Output +\S/m);
  if (/step\.|ARGV\[/.test(text)) expect(text).toMatch(/^-- ARGV +\S/m);
});

test("of many runs of a script that Redis does not have one sends its source", async () => {
  const connection = createConnection({
    address: parseRedisUrl(server.url),
    keys: createKeys(randomUUID()),
    log: quiet,
  });
  onTestFinished(() => connection.client.disconnect());
  await whenReady(connection.client, 10_000);
  const send = vi.spyOn(connection.client, "callBuffer");
  const sourcesSent = () => send.mock.calls.filter(([command]) => command === "eval").length;
  const run = () => evaluateScript(connection, "read_hashes", [1, randomUUID()]);
  for (const before of [0, 1]) {
    await redis.call("script", "flush");
    expect(await Promise.all(Array.from({ length: 20 }, run))).toEqual(Array(20).fill([[]]));
    expect(sourcesSent()).toBe(before + 1);
    await run();
    expect(sourcesSent()).toBe(before + 1);
  }
});

/** The operation of a step, if its answer is stored. */
type Operation = { id: string; isStored: () => Promise<boolean> } | undefined;

function operationOf(keys: StepKeys, values: { op?: string; name?: string } = {}): Operation {
  const { op: key } = keys;
  if (key !== undefined) return { id: key, isStored: async () => (await redis.exists(key)) === 1 };
  const { op: id } = values;
  if (id === undefined) return undefined;
  const isStored = async () => (await redis.hget(keys[`call ${values.name}`] ?? "", "op"))?.startsWith(id) ?? false;
  return { id, isStored };
}

describe("every step sent twice", () => {
  const sent = new Set<StepName>();

  /** Runs every script twice and returns the second answer; both answers of a transition must be equal. */
  const twice = (link: Link): Link => ({
    ...link,
    get storeId() {
      return link.storeId;
    },
    async run(name, keys, values, bytes) {
      const first = await link.run(name, keys, values, bytes);
      const second = await link.run(name, keys, values, bytes);
      sent.add(name);
      if (await operationOf(keys, values)?.isStored()) expect(second).toEqual(asRemembered(first));
      return second;
    },
  });

  storeContract("redis", (options) => openIn(server.url, { through: twice, ...options }), everyStep);

  test("has covered every script", () => {
    expect([...sent].sort()).toEqual([...transitions, ...repeatable].sort());
  });
});

/** Drops the appended events, which only the first answer has; after a lost answer they are read from the log. */
const asRemembered = (answer: Reply) => replyList(answer).slice(0, 2);

describe("every answer lost", () => {
  const scripts = loadScripts();
  const lost = new Set<StepName>();

  // Otherwise the first answer of each script would only be NOSCRIPT.
  beforeAll(async () => {
    for (const { source } of scripts.values()) await redis.call("script", "load", source);
  });

  /** Loses answers of each script, until one was lost after the step was applied. */
  const cut = (link: Link): Link => ({
    ...link,
    get storeId() {
      return link.storeId;
    },
    async run(name, keys, values, bytes) {
      if (lost.has(name)) return link.run(name, keys, values, bytes);
      const operation = operationOf(keys, values);
      const text = operation?.id ?? scripts.get(name)?.sha ?? "";
      proxy.cutAfter(text);
      const answer = await link.run(name, keys, values, bytes);
      if (proxy.cuts.includes(text) && ((await operation?.isStored()) ?? true)) lost.add(name);
      return answer;
    },
  });

  storeContract("redis", (options) => openIn(`redis+unix://${proxy.path}`, { through: cut, ...options }), everyStep);

  test("has covered every script: an answer was lost after the step was applied", () => {
    expect([...lost].sort()).toEqual([...transitions, ...repeatable].sort());
  });

  test("fails to open after a lost answer to the choice of a store id; later replicas agree on that id", async () => {
    const prefix = randomUUID();
    const open = () => openRedisStore({ url: `redis+unix://${proxy.path}`, prefix, log: quiet });
    proxy.cutAfter(scripts.get("set_store_id")?.sha ?? "");
    await expect(open()).rejects.toThrow();
    const [one, other] = [await open(), await open()];
    expect(one.calls.storeId).toBe(other.calls.storeId);
    expect(await redis.get(createKeys(prefix).storeId(0))).toBe(one.calls.storeId);
    await Promise.all([one.calls.close(), other.calls.close()]);
  });
});
