import type { CopiedServers } from "../store/redis-failover.ts";
import { startWire, type Wire } from "./wire.ts";

/**
 * Opens the lines of one replica to each sentinel and to each of its servers. The sentinel's answers name the lines in place of the
 * servers, so that the replica reaches each master by a line, and a cut is a partition of this replica alone.
 */
export async function startSentinelWire(servers: CopiedServers): Promise<Wire> {
  const { url, ports: present, sparePort, spareSentinelPort } = servers;
  const host = "127.0.0.1";
  const { port, pathname } = new URL(url);
  const ports = [...present, ...(sparePort === undefined ? [] : [sparePort])];
  const lines = await Promise.all(ports.map((each) => startWire({ host, port: each })));
  const names = new Map(ports.map((each, index) => [String(each), new URL(lines[index]?.url ?? url).port]));
  const openTo = (sentinelPort: number) =>
    startWire({ host, port: sentinelPort }, (reply) =>
      Buffer.from(
        reply.toString("latin1").replace(/\d{5}/g, (word) => names.get(word) ?? word),
        "latin1",
      ),
    );
  const sentinel = await openTo(Number(port));
  const all = [sentinel, ...lines];
  if (spareSentinelPort !== undefined) {
    const second = await openTo(spareSentinelPort);
    names.set(String(spareSentinelPort), new URL(second.url).port);
    all.push(second);
  }
  // Replies state lengths, so a name keeps its own.
  if ([...names].some(([one, other]) => one.length !== other.length))
    throw new Error(`ports differ in length: ${[...names]}`);
  return {
    url: `${sentinel.url.replace("redis:", "redis+sentinel:")}${pathname}`,
    set(line) {
      for (const wire of all) wire.set(line);
    },
    loseAnswers(nth) {
      for (const wire of lines) wire.loseAnswers(nth);
    },
    get lost() {
      return lines.reduce((sum, wire) => sum + wire.lost, 0);
    },
    async close() {
      await Promise.all(all.map((wire) => wire.close()));
    },
  };
}
