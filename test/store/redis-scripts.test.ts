import { afterAll, describe, expect, test } from "vitest";
import type { Link } from "../../src/store/redis/link.ts";
import { list, type Reply } from "../../src/store/redis/reply.ts";
import { loadScripts, type StepName, stepNames } from "../../src/store/redis/scripts.ts";
import { storeContract } from "./contract.ts";
import { startCuttingProxy } from "./cutting-proxy.ts";
import { startRedis } from "./redis-server.ts";
import { openIn } from "./redis-store.ts";

const server = await startRedis();
const [{ path: socket }] = server.nodes as [{ path: string }];
const proxy = await startCuttingProxy(`${socket}.proxy`, socket);

afterAll(async () => {
  await proxy.close();
  await server.stop();
});

// The link sends one by itself, before there is a store.
const ofStores = stepNames.filter((name) => name !== "set_store_id");

describe("every step sent twice", () => {
  const sent = new Set<StepName>();

  /** Sends everything a second time and answers with what that says; transitions must say the same both times. */
  const twice = (link: Link): Link => ({
    ...link,
    get storeId() {
      return link.storeId;
    },
    async run(name, keys, values, bytes) {
      const first = await link.run(name, keys, values, bytes);
      const second = await link.run(name, keys, values, bytes);
      sent.add(name);
      if ("op" in keys && wrote(first)) expect(second).toEqual(asRemembered(first));
      return second;
    },
  });

  storeContract("redis", ({ limits } = {}) => openIn(server.url, { through: twice, ...(limits && { limits }) }));

  test("that was every script", () => {
    expect([...sent].sort()).toEqual(ofStores);
  });
});

/** What a step added to logs is told once: who missed it reads it there. */
const asRemembered = (answer: Reply) => list(answer).slice(0, 2);

/** A transition that wrote something has news, or changed what its answer names. */
function wrote(answer: unknown): boolean {
  return Array.isArray(answer) && Array.isArray(answer[1]) && answer[1].length > 0;
}

describe("every answer lost", () => {
  const scripts = loadScripts();
  const sent = new Map<StepName, number>();

  /** Loses the answers to the first few times that a script is sent, once Redis knows it. */
  const cut = (link: Link): Link => ({
    ...link,
    get storeId() {
      return link.storeId;
    },
    run(name, keys, values, bytes) {
      const count = (sent.get(name) ?? 0) + 1;
      sent.set(name, count);
      if (count <= 3) proxy.cutAfter(scripts.get(name)?.sha ?? "");
      return link.run(name, keys, values, bytes);
    },
  });

  storeContract("redis", ({ limits } = {}) =>
    openIn(`redis+unix://${proxy.path}`, { through: cut, ...(limits && { limits }) }),
  );

  test("that was every script", () => {
    expect([...sent.keys()].sort()).toEqual(ofStores);
    expect(proxy.cuts).toBeGreaterThan(ofStores.length);
  });
});
