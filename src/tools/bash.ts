import { type ChildProcess, spawn } from "node:child_process";
import { closeSync } from "node:fs";
import * as z from "zod";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import { defineTool, type Tool, type ToolContext } from "../tool/tool.ts";
import { externalAsks, type ResolvedPath, type Workspace } from "../tool/workspace.ts";
import { openPipe, passOn } from "./pipe.ts";
import type { Supervisor } from "./supervisor.ts";

/** The engine's deadline comes this much later than the command's own, so that a slow end is still a completed call. */
const grace = 5_000;
const longestTimeout = 3_600_000 - grace;
/** The kernel takes no longer argument. */
const longestCommand = 131_071;

/** Runs command lines. Nothing is kept from one to the next; background processes go on until the call is stopped or the service ends. */
export function createBash({ supervisor }: { supervisor: Supervisor }): Tool {
  return defineTool({
    name: "bash",
    description: [
      "Run a command line with bash and return what it prints, stdout and stderr together.",
      "Each call starts a new shell in the workspace; to run in another folder set workdir instead of using cd.",
      "Input is empty. Of a long output the end is returned.",
    ].join(" "),
    input: z.object({
      command: command.describe("The command line"),
      timeout: z
        .int()
        .positive()
        .max(longestTimeout)
        .default(120_000)
        .describe("Milliseconds after which the command is stopped"),
      workdir: z.string().min(1).optional().describe("Folder to run in; default the workspace"),
      description: z.string().optional().describe("What the command does, in 5 to 10 words"),
    }),
    destructive: true,
    openWorld: true,
    keep: { end: "tail" },
    async plan({ command, timeout, workdir, description }, { workspace }) {
      const folder = await workspace.resolve(workdir ?? ".");
      const about = description === undefined ? {} : { description };
      return {
        title: description || command,
        asks: [
          ...externalAsks({ ...folder, isFolder: true }),
          {
            permission: "bash",
            patterns: [command],
            cwd: folder.absolute,
            metadata: { command, workdir: folder.pattern, ...about },
          },
        ],
        cwd: folder.absolute,
        timeoutMs: timeout + grace,
        reveals: folder.external ? [folder] : [],
        folder,
        async inspect() {
          await checkFolder(workspace, folder);
          return { preview: { command, paths: [folder.pattern] } };
        },
      };
    },
    async execute({ command, timeout, description = "" }, ctx) {
      await checkFolder(ctx.workspace, ctx.plan.folder);
      const marks = await supervisor.watch(ctx).catch((cause: unknown) => {
        throw new ToolFailure(`bash cannot run commands: ${String(cause)}`, { cause });
      });
      ctx.signal.throwIfAborted();
      const run = await start(command, ctx.plan.folder.absolute, { ...inherited(), ...marks }, ctx.output);
      const timedOut = !(await finish(run, ctx, timeout, () => supervisor.kill(ctx, run.pid)));
      const { code, signal } = run.exit;
      const note = describeEnd(timedOut ? timeout : undefined, code, signal);
      return {
        ...((await run.passed) === 0 ? { output: "(no output)" } : {}),
        ...(note === undefined ? {} : { note }),
        metadata: { exit: code, signal, description },
      };
    },
  });
}

const command = z
  .string()
  .refine((text) => text.trim() !== "", "command is empty; write a command line")
  .refine((text) => !text.includes("\0"), "command contains a NUL character; remove it")
  .refine(
    (text) => Buffer.byteLength(text) <= longestCommand,
    `command is over ${longestCommand} bytes; write it to a file and run that`,
  )
  .refine(
    (text) => !/^\s*cd(\s[^;&|\n]*)?;?\s*$/.test(text),
    "a cd on its own has no effect on later calls; set workdir on the call that needs the folder",
  );

interface Run {
  pid: number;
  exit: { code: number | null; signal: NodeJS.Signals | null };
  exited: Promise<void>;
  /** How many bytes it wrote. */
  passed: Promise<number>;
  /** Stops waiting for output; what is in the pipe is still passed on. */
  end(): void;
}

/** Starts bash as the leader of its own process group and session. */
async function start(
  command: string,
  cwd: string,
  env: Record<string, string>,
  output: ToolContext["output"],
): Promise<Run> {
  const { reader, writer } = await openPipe();
  try {
    const child = spawn("/bin/bash", ["--noprofile", "--norc", "-c", command], {
      cwd,
      env,
      detached: true,
      stdio: ["ignore", writer, writer],
    });
    const ended = new AbortController();
    const exit: Run["exit"] = { code: null, signal: null };
    const exited = new Promise<void>((resolve) => {
      child.once("exit", (code, signal) => {
        Object.assign(exit, { code, signal });
        ended.abort();
        resolve();
      });
    });
    const pid = await pidOf(child);
    return { pid, exit, exited, passed: passOn(reader, ended.signal, output), end: () => ended.abort() };
  } catch (cause) {
    reader.destroy();
    throw new ToolFailure(`Cannot start /bin/bash: ${String(cause)}`, { cause });
  } finally {
    closeSync(writer);
  }
}

function pidOf(child: ChildProcess): Promise<number> {
  if (child.pid !== undefined) return Promise.resolve(child.pid);
  return new Promise((_, reject) => child.once("error", reject));
}

/** Waits until the command has exited and its output is passed on; false if it ran out of time and was killed. Throws on cancel. */
async function finish(run: Run, ctx: ToolContext, timeout: number, kill: () => Promise<void>): Promise<boolean> {
  const stop = AbortSignal.any([ctx.signal, AbortSignal.timeout(timeout)]);
  try {
    await untilAborted(Promise.all([run.exited, run.passed]), stop);
    return true;
  } catch (error) {
    await kill();
    run.end();
    await Promise.allSettled([run.passed]);
    ctx.signal.throwIfAborted();
    if (error !== stop.reason) throw error;
    return false;
  }
}

async function untilAborted(work: Promise<unknown>, signal: AbortSignal): Promise<void> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = () => reject(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  try {
    await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/** The folder must still be the one that the path was resolved to. */
async function checkFolder(workspace: Workspace, folder: ResolvedPath): Promise<void> {
  const now = await workspace.resolve(folder.absolute);
  if (now.absolute !== folder.absolute) {
    throw new ChangedAfterApproval(`workdir ${folder.absolute} now leads to ${now.absolute}. Call the tool again.`);
  }
  if (!now.isFolder)
    throw new ToolFailure(`workdir ${folder.absolute} is not a folder. Create it or name another one.`);
}

/** What a command sees of the service's environment: nothing that could hold a secret. */
function inherited(): Record<string, string> {
  const names = ["HOME", "LANG", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "PATH"];
  const kept = Object.entries(process.env).flatMap(([name, value]) =>
    value !== undefined && (names.includes(name) || name.startsWith("LC_")) ? [[name, value] as const] : [],
  );
  return {
    PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ...Object.fromEntries(kept),
    TERM: "dumb",
  };
}

/** What the model must know besides the output. */
function describeEnd(timeout: number | undefined, code: number | null, signal: string | null): string | undefined {
  if (timeout !== undefined) {
    return note(
      `shell tool terminated command after exceeding timeout ${timeout} ms. If this command is expected to take longer and is not waiting for interactive input, retry with a larger timeout value in milliseconds.`,
    );
  }
  if (signal !== null) return note(`command was ended by ${signal}`);
  return code === 0 ? undefined : note(`command exited with code ${code}`);
}

const note = (text: string) => `<bash_metadata>\n${text}\n</bash_metadata>`;
