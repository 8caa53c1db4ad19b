import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chown, mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, onTestFinished } from "vitest";
import { programEntry } from "../main.ts";

/** The tokens of every test service: name → role. `NAME-token-for-tests` is the token, NAME the principal. */
export const principals = {
  caller: "caller",
  stranger: "caller",
  approver: "approver",
  deputy: "approver",
  watcher: "watcher",
  admin: "admin",
  /** May act as the agent `plan` only. */
  planner: "caller",
} as const;

/** A principal that a test client acts as. */
export type Principal = keyof typeof principals;

/** A service process with private directories. */
export interface Service {
  /** Its address; another one after each start. */
  readonly url: string;
  readonly workspace: string;
  readonly data: string;
  readonly config: string;
  /** Its process, while it runs. */
  readonly pid: number | undefined;
  /** Replaces the top of its toolgate.toml; takes effect at the next start. */
  configure(settings: string): Promise<void>;
  start(): Promise<void>;
  /** kill -9. */
  kill(): Promise<void>;
  /** SIGTERM; resolves with the exit code when it has drained. */
  stop(): Promise<number | null>;
  /** Kills what runs and removes the folders. */
  close(): Promise<void>;
}

/** Options of one service. */
export interface ServiceOptions {
  /** The top of its toolgate.toml. */
  settings?: string;
  flags?: readonly string[];
  /** The entry point, in place of the product's. */
  entry?: string;
  /** Additional environment variables. */
  env?: Readonly<Record<string, string>>;
  /** Lets it create its two tokens instead of using those of `principals`. */
  ownTokens?: boolean;
  /** Maximum of open files of the process. */
  maxFiles?: number;
  /** The user of the operating system as which it runs, if the tests run as root. */
  uid?: number;
}

/** Settings with which a command's process ids are those that a test sees. */
export const unconfined = '[sandbox]\nprofile = "off"\n';

/** One service for all tests of a file. */
export function useService(options: ServiceOptions = {}): Service {
  const service = createService(options);
  beforeAll(service.start);
  afterAll(service.close);
  return service;
}

/** A service for one test. */
export async function startService(options: ServiceOptions = {}): Promise<Service> {
  const service = createService(options);
  onTestFinished(service.close);
  await service.start();
  return service;
}

/** The agent `free` may do everything without a question; for `build` the defaults hold. */
const free = '[agent.free.permission]\n"*" = "allow"\n';
/** Lets commands write ledgers; tests with other rules replace it. */
const ledgers = '[permission.edit]\n"ledger-*" = "allow"\n';

const tokens = Object.entries(principals)
  .map(([id, role]) => {
    const agents = id === "planner" ? 'agents = ["plan"]\n' : "";
    return `[[token]]\nid = "${id}"\nroles = ["${role}"]\nvalue = "${id}-token-for-tests"\n${agents}`;
  })
  .join("");

/** Creates a service; the caller starts and closes it. */
export function createService(options: ServiceOptions = {}): Service {
  const { settings = "", flags = [], entry = programEntry(), env = {}, ownTokens = false, uid, maxFiles } = options;
  let folder = "";
  let url = "";
  let child: ChildProcess | undefined;
  const running = () => {
    if (child === undefined) throw new Error("the service was not started");
    return child;
  };

  async function signal(name: NodeJS.Signals): Promise<number | null> {
    const { exitCode, signalCode } = running();
    if (exitCode !== null || signalCode !== null) return exitCode;
    const exited = once(running(), "exit");
    running().kill(name);
    const [code] = await exited;
    return code;
  }

  const configure = (top: string) =>
    writeFile(
      join(folder, "toolgate.toml"),
      [top, free, top.includes("[permission") ? "" : ledgers, ownTokens ? "" : tokens].join("\n"),
    );

  return {
    configure,
    get url() {
      return url;
    },
    get workspace() {
      return join(folder, "workspace");
    },
    get data() {
      return join(folder, "data");
    },
    get config() {
      return join(folder, "toolgate.toml");
    },
    get pid() {
      return child?.exitCode === null && child.signalCode === null ? child.pid : undefined;
    },
    async start() {
      if (folder === "") {
        folder = await realpath(await mkdtemp(join(tmpdir(), "toolgate-e2e-")));
        await mkdir(join(folder, "workspace"));
        await configure(settings);
        if (uid !== undefined) for (const path of [folder, join(folder, "workspace")]) await chown(path, uid, uid);
      }
      const argv = [process.execPath, entry, ...serve(folder), ...flags];
      const [program = "", ...args] = maxFiles === undefined ? argv : ["prlimit", `--nofile=${maxFiles}`, ...argv];
      child = spawn(program, args, {
        cwd: join(import.meta.dirname, "../.."),
        env: { PATH: process.env.PATH, HOME: folder, ...env },
        stdio: ["ignore", "ignore", "pipe"],
        ...(uid !== undefined && { uid, gid: uid }),
      });
      url = await addressOf(child);
    },
    async kill() {
      await signal("SIGKILL");
    },
    stop: () => signal("SIGTERM"),
    async close() {
      if (child !== undefined) await signal("SIGKILL");
      // What the supervisor kills may still write for a moment.
      await rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 50 });
    },
  };
}

function serve(folder: string): string[] {
  const paths = { workspace: "workspace", data: "data", config: "toolgate.toml" };
  const named = Object.entries(paths).flatMap(([flag, name]) => [`--${flag}`, join(folder, name)]);
  return ["serve", "--listen", "127.0.0.1:0", ...named];
}

/** Resolves when the service says where it is; what it says afterwards is read and dropped. */
function addressOf({ stderr }: ChildProcess): Promise<string> {
  if (stderr === null) throw new Error("the service has no stderr");
  const heard: string[] = [];
  return new Promise((resolve, reject) => {
    const fail = () => reject(new Error(`the service did not start:\n${heard.join("\n")}`));
    createInterface({ input: stderr })
      .on("line", (line) => {
        heard.push(line);
        const url = / is at .*?(https?:\/\/[0-9.:]+)/.exec(line)?.[1];
        if (url !== undefined) resolve(url);
        // The last line of an error; old versions stay after it, without serving.
        if (/^\s*next: /.test(line)) fail();
      })
      .on("close", fail);
  });
}
