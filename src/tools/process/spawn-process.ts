import { spawn } from "node:child_process";
import { closeSync, constants, lstatSync, openSync } from "node:fs";

// Child process of `createSpawner`: it is small, has no environment and no secrets, and ends with the service.
const service = process.ppid;

/** A program to start in a separate session. */
export interface ProgramToStart {
  readonly program: string;
  readonly args: readonly string[];
  readonly cwd: string;
  /** The whole environment. */
  readonly env: Readonly<Record<string, string>>;
  /** Open files of the service that it inherits, from descriptor 1 on. */
  readonly descriptors: readonly number[];
}

/** End of a program. */
export interface ProgramExit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** Reports that a program was started, was not, or has ended. */
export type ProgramReport = { readonly id: number } & (
  | { readonly pid: number }
  | { readonly error: string; readonly code?: unknown }
  | { readonly exit: ProgramExit }
);

process.on("message", ({ id, program, args, descriptors, ...options }: ProgramToStart & { id: number }) => {
  const opened: number[] = [];
  const send = (report: ProgramReport) => void process.send?.(report);
  const fail = (error: Error) => send({ id, error: String(error), ...("code" in error && { code: error.code }) });
  try {
    for (const descriptor of descriptors) opened.push(reopen(descriptor));
    const child = spawn(program, args, { ...options, detached: true, stdio: ["ignore", ...opened] });
    child.once("error", fail).once("exit", (code, signal) => send({ id, exit: { code, signal } }));
    if (child.pid !== undefined) send({ id, pid: child.pid });
  } catch (error) {
    fail(error as Error);
  } finally {
    for (const descriptor of opened) closeSync(descriptor);
  }
});
process.once("disconnect", () => process.exit());

/** Opens a file that the service has open, in the same mode, which the kernel shows as that of the link. */
function reopen(descriptor: number): number {
  const path = `/proc/${service}/fd/${descriptor}`;
  const { mode } = lstatSync(path);
  if ((mode & constants.S_IWUSR) === 0) return openSync(path, constants.O_RDONLY);
  return openSync(path, (mode & constants.S_IRUSR) === 0 ? constants.O_WRONLY : constants.O_RDWR);
}
