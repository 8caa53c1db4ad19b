import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** A real service with private directories, at one address for all of its starts. */
export interface KitService {
  readonly url: string;
  /** Ends it with SIGKILL. */
  kill(): Promise<void>;
  start(): Promise<void>;
}

/** Settings of a service of the kit. */
export interface KitServiceOptions {
  folder: string;
  /** Names of its workspaces: each case has one. */
  workspaces: readonly string[];
  /** Time that a permission request stays open. */
  askMs: number;
}

/** The token of a role. */
export const tokenOf = (role: "caller" | "approver" | "worker") => `${role}-token-of-the-worker-kit`;

const program = join(import.meta.dirname, "../../bin/toolgate.js");

const rules = `
[sandbox]
profile = "off"
[limits]
runner_beat_ms = 5000
[permission]
"kit_*" = "allow"
[permission.kit_echo]
"*" = "allow"
"ask *" = "ask"
[permission.kit_traffic]
"*" = "ask"
[permission.kit_version]
"*" = "ask"
[[token]]
id = "caller"
roles = ["caller"]
value = "${tokenOf("caller")}"
[[token]]
id = "approver"
roles = ["approver"]
value = "${tokenOf("approver")}"
[[token]]
id = "worker"
roles = ["worker"]
tools = ["kit_*"]
permissions = ["kit_traffic", "kit_version"]
value = "${tokenOf("worker")}"
`;

/** Starts a service. */
export async function startKitService({ folder, workspaces, askMs }: KitServiceOptions): Promise<KitService> {
  const directories = ["default", ...workspaces].map((name) => [name, join(folder, "workspaces", name)] as const);
  for (const [, directory] of directories) await mkdir(directory, { recursive: true });
  const named = directories.map(([name, directory]) => `${name} = ${JSON.stringify(directory)}`);
  const config = join(folder, "toolgate.toml");
  await writeFile(config, [`ask_ms = ${askMs}`, rules, "[workspace]", ...named].join("\n"));
  const port = await freePort();
  const listen = ["serve", "--listen", `127.0.0.1:${port}`, "--data", join(folder, "data"), "--config", config];
  let child: ChildProcess | undefined;
  const service: KitService = {
    url: `http://127.0.0.1:${port}`,
    async start() {
      const env = { PATH: process.env.PATH, HOME: folder };
      child = spawn(process.execPath, [program, ...listen], { cwd: folder, env, stdio: ["ignore", "ignore", "pipe"] });
      await untilReady(child);
    },
    async kill() {
      if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
      const exited = once(child, "exit");
      child.kill("SIGKILL");
      await exited;
    },
  };
  await service.start();
  return service;
}

/** Resolves when the service says where it is; later lines are read and dropped. */
async function untilReady({ stderr }: ChildProcess): Promise<void> {
  if (stderr === null) throw new Error("the service has no stderr");
  const lines: string[] = [];
  await new Promise<void>((resolve, reject) => {
    createInterface({ input: stderr })
      .on("line", (line) => {
        lines.push(line);
        if (/ is at .*https?:\/\//.test(line)) resolve();
      })
      .on("close", () => reject(new Error(`the service of the kit did not start:\n${lines.join("\n")}`)));
  });
}

/** Finds a port for a service that keeps its address when it is started again. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  server.close();
  await once(server, "close");
  return typeof address === "object" && address !== null ? address.port : 0;
}
