import { join } from "node:path";
import { pathToFileURL } from "node:url";

/** True if the program runs from its TypeScript sources. */
export const isCheckout = import.meta.filename.endsWith(".ts");
/** The checkout, or the package's `dist`. */
const root = isCheckout ? join(import.meta.dirname, "../..") : import.meta.dirname;
const place = (inCheckout: string, inPackage: string) => join(root, isCheckout ? inCheckout : inPackage);

/** Files that the program reads or starts at run time: paths in a checkout (TypeScript), and in the package (one bundle). */
export const assets = {
  /** The whole program; stack frames inside it are our own. */
  root,
  /** The built web console. */
  console: place("dist/console", "console"),
  /** Directory of the completion scripts. */
  completionScripts: place("gen/completion", "completion"),
  /** Directory of the Redis scripts. */
  redisScripts: place("src/store/redis/scripts", "redis"),
  /** The shell script that supervises commands. */
  supervisor: place("src/tools/process/supervisor.sh", "supervisor.sh"),
  /** Entry of the thread that starts it and sends it heartbeats. */
  supervisorThread: pathToFileURL(place("src/tools/process/supervisor-thread.ts", "supervisor-thread.js")),
  /** Entry of the process that starts commands. */
  spawnProcess: pathToFileURL(place("src/tools/process/spawn-process.ts", "spawn-process.js")),
  /** The program that agents start for each use of a tool. */
  hookProgram: place("src/cli/hook/hook-program.ts", "hook.cjs"),
  /** Entry of the process that connects commands to hosts. */
  proxyProcess: pathToFileURL(place("src/sandbox/network/proxy-process.ts", "proxy-process.js")),
  /** Entry of the processes that run the tools and plugins of files, under Node or Bun. */
  toolProcess: pathToFileURL(place("src/bodies/program/main.ts", "tool-process.js")),
  /** Entry of the thread that converts HTML. */
  htmlWorker: pathToFileURL(place("src/tools/web/html-worker.ts", "html-worker.js")),
  /** Entry of the thread that reads command lines. */
  analysisWorker: pathToFileURL(place("src/call/analysis-worker.ts", "analysis-worker.js")),
  /** Entry of the thread that judges recorded calls by other rules. */
  simulateThread: pathToFileURL(place("src/compose/simulate-thread.ts", "simulate-thread.js")),
  /** Entry of the thread that plans what commands see of the disk. */
  planThread: pathToFileURL(place("src/sandbox/plan-thread.ts", "plan-thread.js")),
  /** The modules `toolgate/plugin` and `zod` for tool files, by URL: the same instances that the service uses. */
  plugin: pathToFileURL(place("src/tool/plugin.ts", "plugin.js")).href,
  zod: isCheckout ? import.meta.resolve("zod") : pathToFileURL(place("", "zod.js")).href,
} as const;
