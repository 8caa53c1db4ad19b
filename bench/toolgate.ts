import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createHttp2Client, type Http2Client } from "./http2-client.ts";
import type { Processes, ServerProcess } from "./processes.ts";

/** Principals that answer permission requests. */
export const approvers = ["approver-1", "approver-2", "approver-3", "approver-4"] as const;

/** A principal that a client acts as. */
export type Principal = "caller" | "watcher" | (typeof approvers)[number];

/** The service, running. */
export interface Toolgate {
  readonly server: ServerProcess;
  /** The directory that its tools work in; one for all services of a bench. */
  readonly workspace: string;
  /** Opens a connection. */
  connect(principal: Principal): Http2Client;
}

/**
 * Starts the service as users do. `rules` are lines of its `[permission]`, `settings` come behind its tokens; `main` is the entry point
 * of another version.
 */
export async function startToolgate(
  { folder, start }: Processes,
  {
    name,
    store = "sqlite",
    storeStrict,
    flags = [],
    rules = "",
    settings = "",
    main = join(import.meta.dirname, "../src/main.ts"),
  }: {
    name: string;
    store?: string;
    storeStrict?: boolean;
    flags?: readonly string[];
    rules?: string;
    settings?: string;
    main?: string;
  },
): Promise<Toolgate> {
  const own = join(folder, name);
  const workspace = join(folder, "workspace");
  await Promise.all([own, workspace].map((path) => mkdir(path, { recursive: true })));
  const strict = storeStrict === undefined ? "" : `store_strict = ${storeStrict}\n`;
  await writeFile(
    join(own, "toolgate.toml"),
    `store = "${store}"\n${strict}[permission]\ndoom_loop = "allow"\n${rules}\n${tokens}${settings}`,
  );
  const paths = ["--data", join(own, "data"), "--workspace", workspace, "--config", join(own, "toolgate.toml")];
  const server = await start([youngSpace, ...flags, main, "serve", "--listen", "127.0.0.1:0", ...paths]);
  return {
    server,
    workspace,
    connect: (principal) => createHttp2Client(server.url, { authorization: `Bearer ${principal}-token-for-tests` }),
  };
}

/** As its launcher, its unit and its image start it. */
const youngSpace = "--max-semi-space-size=4";

const tokens = [
  ["caller", "caller"],
  ["host", "host"],
  ["watcher", "watcher"],
  ...approvers.map((id) => [id, "approver"]),
]
  .map(([id, role]) => `[[token]]\nid = "${id}"\nroles = ["${role}"]\nvalue = "${id}-token-for-tests"\n`)
  .join("");
