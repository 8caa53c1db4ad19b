import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { tokenOf } from "./kit-service.ts";
import { type KitWire, layKitWire } from "./kit-wire.ts";

/** A process of the worker under test, behind its wire. */
export interface KitWorker {
  readonly wire: KitWire;
  /** Lines that its bodies wrote, such as `entered TEXT`. */
  ledger(): string[];
  /** Lets the bodies of a text end. */
  release(text: string): Promise<void>;
  /** Sets the version that the plans of a text read. */
  setVersion(text: string, version: string): Promise<void>;
  /** Sends SIGTERM. */
  terminate(): void;
  /** Its exit code, or the name of the signal that ended it; undefined while it runs. */
  exit(): number | NodeJS.Signals | undefined;
  /** The last lines that it printed. */
  printed(): string;
  close(): Promise<void>;
}

/** The command under test, and where it runs. */
export interface KitCommand {
  readonly words: readonly string[];
  readonly directory: string;
}

/** Starts the command behind a wire to a service. */
export async function startKitWorker(
  { words: [program = "", ...args], directory }: KitCommand,
  url: string,
  prepare: (wire: KitWire) => void,
): Promise<KitWorker> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-kit-"));
  const ledger = join(folder, "ledger");
  await writeFile(ledger, "");
  const wire = await layKitWire(url);
  prepare(wire);
  const env = { ...process.env, TOOLGATE_URL: wire.url, TOOLGATE_TOKEN: tokenOf("worker"), TOOLGATE_KIT: folder };
  // A group, so that also the worker behind a script ends.
  const child = spawn(program, args, { cwd: directory, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
  let [printed, failure] = ["", ""];
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (bytes) => {
      printed = (printed + bytes).slice(-4_000);
    });
  child.on("error", ({ message }) => {
    failure = message;
  });
  return {
    wire,
    ledger: () => readFileSync(ledger, "utf8").split("\n").filter(Boolean),
    release: (text) => writeFile(join(folder, `release-${text}`), ""),
    setVersion: (text, version) => writeFile(join(folder, `version-${text}`), version),
    terminate: () => void child.kill("SIGTERM"),
    exit: () => (failure === "" ? (child.exitCode ?? child.signalCode ?? undefined) : 127),
    printed: () => (failure === "" ? printed.trim().split("\n").slice(-5).join("\n") : failure),
    async close() {
      await end(child);
      await wire.close();
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function end(child: ChildProcess): Promise<void> {
  const { pid } = child;
  if (pid === undefined) return;
  const isOver = child.exitCode !== null || child.signalCode !== null;
  const exited = isOver ? undefined : once(child, "exit");
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // The whole group has ended.
  }
  await exited;
}
