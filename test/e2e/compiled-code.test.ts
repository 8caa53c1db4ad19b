import { chmod, mkdir, readdir, rm, stat, symlink, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { type Service, startService } from "./service.ts";

const directoryOf = ({ data }: Service) => join(data, "compiled");

/** The stored files and their inodes: Node replaces a file that it writes. */
async function stored(service: Service): Promise<Map<string, number>> {
  const entries = await readdir(directoryOf(service), { recursive: true, withFileTypes: true });
  const paths = entries.filter((entry) => entry.isFile()).map(({ parentPath, name }) => join(parentPath, name));
  return new Map(await Promise.all(paths.map(async (path) => [path, (await stat(path)).ino] as const)));
}

/** Waits until all of the code is stored, and kills the service. */
async function killOnceStored(service: Service): Promise<string[]> {
  let last = 0;
  const isDone = async () => {
    // A file that is being written changes its name.
    const { size } = await stored(service).catch(() => new Map());
    const isSame = size > 20 && size === last;
    last = size;
    return isSame;
  };
  await vi.waitUntil(isDone, { timeout: 30_000, interval: 500 });
  await service.kill();
  return [...(await stored(service)).keys()];
}

const isServed = async ({ url }: Service) => (await fetch(`${url}/readyz`)).status === 200;

test("a start uses the compiled code that the one before stored, also after SIGKILL, and compiles what is damaged", async () => {
  const service = await startService();
  const paths = await killOnceStored(service);
  expect((await stat(directoryOf(service))).mode & 0o777).toBe(0o700);
  const damaged = paths.filter((_, index) => index % 3 !== 0);
  for (const [index, path] of damaged.entries())
    await (index % 2 === 0 ? truncate(path, 40) : writeFile(path, "no code"));
  const before = await stored(service);

  await service.start();
  expect(await isServed(service)).toBe(true);
  expect(await service.stop()).toBe(0);
  const after = await stored(service);
  const written = [...before.keys()].filter((path) => after.get(path) !== before.get(path));
  expect(written.toSorted()).toEqual(damaged.toSorted());
});

const unusable: Readonly<Record<string, (directory: string) => Promise<void>>> = {
  async "that others may write to"(directory) {
    await mkdir(directory);
    await chmod(directory, 0o777);
  },
  async "that is a link"(directory) {
    await mkdir(`${directory}-elsewhere`);
    await symlink(`${directory}-elsewhere`, directory);
  },
};

test.each(Object.entries(unusable))("a service stores no compiled code in a directory %s", async (_name, make) => {
  const service = await startService();
  expect(await service.stop()).toBe(0);
  expect((await stored(service)).size).toBeGreaterThan(20);
  await rm(directoryOf(service), { recursive: true });
  await make(directoryOf(service));
  await service.start();
  expect(await isServed(service)).toBe(true);
  expect(await service.stop()).toBe(0);
  expect((await stored(service)).size).toBe(0);
});

test("a service starts without a place for compiled code, and deletes what another version stored", async () => {
  const service = await startService();
  expect(await service.stop()).toBe(0);
  const other = join(directoryOf(service), "0.0.1-node-24.0.0");
  await mkdir(other);
  await service.start();
  expect(await service.stop()).toBe(0);
  await expect(stat(other)).rejects.toThrow("ENOENT");
  await rm(directoryOf(service), { recursive: true });
  await writeFile(directoryOf(service), "");
  await service.start();
  expect(await isServed(service)).toBe(true);
  expect(await service.stop()).toBe(0);
});
