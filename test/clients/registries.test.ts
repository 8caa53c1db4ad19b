import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { commandSettings, runLine, serviceForCommands } from "./commands.ts";

/** Refuses each host, so that results name those which a client needs. */
const closed = '[permission.webfetch]\n"*" = "deny"\n';
const service = serviceForCommands(closed);
beforeAll(service.start);
afterAll(service.close);

/** Clients of registries: a line that fetches something small from the registry for which the client is configured. */
const clients: Readonly<Record<string, readonly [line: string, printed: RegExp]>> = {
  curl: ['curl -sSf "$(npm config get registry)is-number/7.0.0"', /"name": ?"is-number"/],
  npm: [
    "npm install --cache cache --no-audit --no-fund is-number@7.0.0 && node -p 'require(\"is-number\")(7)'",
    /^true$/m,
  ],
  pip: [
    "python3 -m venv venv && venv/bin/pip install -q six==1.16.0 && venv/bin/python -c 'import six; print(six.__version__)'",
    /^1\.16\.0$/m,
  ],
  cargo: [
    "cargo init -q --vcs none --name example && cargo add -q itoa@1 && cargo fetch -q && cat Cargo.lock",
    /name = "itoa"/,
  ],
  go: [
    "go mod init example && go get github.com/google/uuid@v1.6.0 && cat go.sum",
    /^github.com\/google\/uuid v1\.6\.0 h1:/m,
  ],
};

test.each(Object.entries(clients))(
  "%s fetches through the proxy as soon as rules allow the hosts that results named as refused",
  async (client, [line, printed]) => {
    const hosts = new Set<string>();
    for (;;) {
      await allow(hosts);
      // A host is named when a client reaches for it, and some reach for the next one after the first has answered.
      const workdir = join(client, String(hosts.size));
      await mkdir(join(service.workspace, workdir), { recursive: true });
      const { output, metadata } = await runLine(service, "build", line, workdir);
      const refused = metadata.network?.refused ?? [];
      if (refused.length === 0) {
        expect(metadata.exit, output).toBe(0);
        expect(output).toMatch(printed);
        expect(metadata.network?.hosts.some(({ receivedBytes }) => receivedBytes > 0)).toBe(true);
        break;
      }
      expect(output).not.toMatch(printed);
      const size = hosts.size;
      for (const { url } of refused) hosts.add(new URL("/", url).href);
      expect(hosts.size, JSON.stringify(refused)).toBeGreaterThan(size);
    }
    expect(hosts.size, "control: without rules it fetches nothing").toBeGreaterThan(0);
  },
);

/** Puts rules in force that allow these hosts alone. */
async function allow(hosts: ReadonlySet<string>): Promise<void> {
  const before = await reloads();
  await service.configure(commandSettings(`${closed}${[...hosts].map((url) => `"${url}*" = "allow"\n`).join("")}`));
  process.kill(service.pid ?? 0, "SIGHUP");
  await vi.waitUntil(async () => (await reloads()) > before, { timeout: 30_000 });
}

async function reloads(): Promise<number> {
  // The service does not wait for its log: right after the start there may be none.
  const text = await readFile(join(service.data, "log/toolgate.log"), "utf8").catch(() => "");
  return text.split("configuration reloaded").length;
}
