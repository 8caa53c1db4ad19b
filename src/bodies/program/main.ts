/** The program of a tool process: loads tool files and plugins, and runs their bodies and hooks for the service. */
import { writeSync } from "node:fs";
import { openPipes, serveCalls } from "./serve-calls.ts";

/** Reports a defect on stderr, which the service logs, and ends the process: its state is not known any more. */
function crash(kind: string, error: unknown): never {
  const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
  writeSync(2, `${kind}: ${text}\n`);
  process.exit(1);
}

process.on("uncaughtException", (error) => crash("Uncaught exception", error));
process.on("unhandledRejection", (error) => crash("Unhandled rejection", error));
await serveCalls(openPipes());
process.exit();
