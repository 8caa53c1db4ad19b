import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { callCases } from "./cases/calls.ts";
import { connectionCases } from "./cases/connections.ts";
import { endCases } from "./cases/ends.ts";
import { createKit, type KitCase, type KitRun, Unexpected } from "./kit.ts";
import { type KitService, startKitService } from "./kit-service.ts";

export const allCases: readonly KitCase[] = [...callCases, ...connectionCases, ...endCases];

/** Runs a case; returns why it failed. */
export async function runCase(run: KitRun, { name, run: check }: KitCase): Promise<Unexpected | undefined> {
  const kit = createKit(run, workspaceOf(name));
  try {
    await check(kit);
    return undefined;
  } catch (error) {
    if (error instanceof Unexpected) return error;
    const why = error instanceof Error ? (error.stack ?? error.message) : String(error);
    return new Unexpected("the kit to go on", why);
  } finally {
    await kit.close();
  }
}

const workspaceOf = (name: string) => name.replaceAll(/[^A-Za-z]+/g, "-").toLowerCase();

/** Starts the service for cases, and a second one when a case needs it, while `work` runs. */
export async function withServices<T>(
  cases: readonly KitCase[],
  work: (services: Pick<KitRun, "service" | "withOther">) => Promise<T>,
): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-kit-"));
  const workspaces = cases.map(({ name }) => workspaceOf(name));
  const services: KitService[] = [];
  const start = async (name: string, askMs: number) => {
    const service = await startKitService({ folder: join(folder, name), workspaces, askMs });
    services.push(service);
    return service;
  };
  let other: Promise<KitService> | undefined;
  let last: Promise<unknown> = Promise.resolve();
  try {
    return await work({
      service: await start("first", 600_000),
      // Cases that end it, or wait for it, come one after the other.
      withOther(use) {
        const mine = last.then(async () => {
          other ??= start("second", 1_500);
          return await use(await other);
        });
        last = mine.catch(() => undefined);
        return mine;
      },
    });
  } finally {
    for (const service of services) await service.kill();
    await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
  }
}
