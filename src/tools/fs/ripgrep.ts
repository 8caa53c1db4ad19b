import { spawn } from "node:child_process";
import { access, readdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { trackedPaths } from "../../core/tracked-files.ts";
import { ToolFailure } from "../../tool/errors.ts";
import { temporaryGlob } from "./leftovers.ts";

const maxMs = 60_000;
const tookTooLong = `it took longer than ${maxMs / 1_000} s`;
const maxBytes = 10 * 1024 * 1024;
const maxComplaintLength = 2_000;

/** A run of ripgrep. */
export interface Search {
  args: readonly string[];
  /** Working directory. */
  cwd?: string;
  /** Open files, which ripgrep reads as `/dev/fd/3` and so on. */
  files?: readonly number[];
  /** Standard input. */
  input?: AsyncIterable<Uint8Array>;
  /** The byte that ends each printed record. */
  delimiter: "\0" | "\n";
  /** Prefilter on a block of printed records: blocks for which it returns false are skipped. */
  prefilter?(records: string): boolean;
  /** Time limit: one `searchTime` for all searches of a call. */
  late: AbortSignal;
  signal: AbortSignal;
}

/** Starts the time limit of a call's searches. */
export const searchTime = () => AbortSignal.timeout(maxMs);

/** Arguments of every search: leave out files that git ignores and our temporary files, include hidden files, ignore settings files. */
export const everySearch = [
  "--no-config",
  "--no-messages",
  "--color=never",
  "--hidden",
  "--no-require-git",
  "--glob=!.git",
  `--glob=!${temporaryGlob}`,
];

/**
 * Runs ripgrep and passes each printed record on. Stops at the time limit or after 10 MiB and returns the reason. Throws
 * `ToolFailure` with ripgrep's explanation for a pattern that it cannot parse.
 */
export async function ripgrep(search: Search, onRecord: (record: string) => void): Promise<string | undefined> {
  const { args, cwd, files = [], input, signal, late } = search;
  const rg = await program();
  signal.throwIfAborted();
  // An earlier search of the call took all of its time.
  if (late.aborted) return tookTooLong;
  const child = spawn(rg, args, {
    ...(cwd !== undefined && { cwd }),
    env: {},
    stdio: [input === undefined ? "ignore" : "pipe", "pipe", "pipe", ...files],
  });
  const killed = Promise.withResolvers<void>();
  const kill = () => {
    child.kill("SIGKILL");
    killed.resolve();
  };
  const stop = AbortSignal.any([signal, late]);
  stop.addEventListener("abort", kill, { once: true });
  const { promise: closed, resolve, reject } = Promise.withResolvers<number | null>();
  child.once("error", reject).once("close", resolve);
  try {
    const fed = input && child.stdin && pipeline(Readable.from(input), child.stdin).catch(unlessClosed);
    const [isWhole, complaint, code] = await Promise.all([
      readRecords(child.stdout, search, onRecord, kill),
      readComplaint(child.stderr),
      closed,
      // An input that never arrives must not delay the end.
      Promise.race([fed, killed.promise]),
    ]);
    signal.throwIfAborted();
    if (!isWhole) return "it found more than 10 MiB";
    if (late.aborted) return tookTooLong;
    if (code === 2 && complaint !== "") throw new ToolFailure(explain(complaint));
    return undefined;
  } finally {
    kill();
    stop.removeEventListener("abort", kill);
  }
}

/** Ignores the errors of a process that ends before it has read all of its input. */
function unlessClosed(error: unknown): void {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  if (code !== "EPIPE" && code !== "ERR_STREAM_PREMATURE_CLOSE") throw error;
}

/** Reads records to the end and returns true; if there are too many bytes, stops ripgrep and returns false. */
async function readRecords(
  stdout: Readable | null,
  { delimiter, prefilter = () => true }: Search,
  onRecord: (record: string) => void,
  kill: () => void,
): Promise<boolean> {
  let rest: Buffer = Buffer.alloc(0);
  let bytes = 0;
  for await (const chunk of stdout ?? []) {
    bytes += chunk.length;
    if (bytes > maxBytes) {
      kill();
      return false;
    }
    const text = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
    const end = text.lastIndexOf(delimiter) + 1;
    const records = text.toString("utf8", 0, Math.max(end - 1, 0));
    if (end > 0 && prefilter(records)) for (const record of records.split(delimiter)) onRecord(record);
    rest = text.subarray(end);
  }
  if (rest.length > 0) onRecord(rest.toString("utf8"));
  return true;
}

async function readComplaint(stderr: Readable | null): Promise<string> {
  let text = "";
  for await (const chunk of stderr ?? []) if (text.length < maxComplaintLength) text += String(chunk);
  return text.slice(0, maxComplaintLength).trim();
}

function explain(complaint: string): string {
  const text = complaint.replace(/^rg: /, "");
  if (!/regex/.test(text)) return `ripgrep refused the search: ${text}`;
  return `The pattern is not a regular expression that ripgrep understands: ${text}\nEscape characters that are meant literally: ( ) [ ] { } . * + ? ^ $ | \\`;
}

const systemPaths = ["/usr/local/bin/rg", "/usr/bin/rg", "/bin/rg", "/opt/homebrew/bin/rg"];

/** Finds the ripgrep of the service, otherwise that of the system, since some images leave optional packages out. */
async function program(): Promise<string> {
  const bundled = await import("@vscode/ripgrep").then(
    ({ rgPath }) => [rgPath],
    () => [],
  );
  for (const path of [...bundled, ...systemPaths]) {
    const found = await access(path).then(
      () => true,
      () => false,
    );
    if (found) return path;
  }
  throw new ToolFailure(
    "ripgrep is not installed where the service runs. Ask its operator to install the package ripgrep.",
  );
}

/** Lists the files of a project that git does not ignore, relative to its directory; perhaps not all of a large one. */
export async function projectFiles(root: string): Promise<string[]> {
  return (await listFiles(root, everySearch)).files;
}

/**
 * Lists what an approval of code is bound to: files and links that git does not ignore, and those that it tracks. Files that only
 * searches leave out belong to it. Throws if these are not all.
 */
export async function codeFiles(root: string): Promise<string[]> {
  const options = everySearch.filter((option) => !option.includes(temporaryGlob));
  const [{ files, stopped }, tracked = []] = await Promise.all([
    listFiles(root, [...options, "--no-ignore-dot"]),
    trackedPaths(root),
  ]);
  if (stopped !== undefined) throw new Error(stopped);
  const all = new Set([...files, ...tracked]);
  const directories = new Set(["."]);
  for (const file of all) for (let at = dirname(file); !directories.has(at); at = dirname(at)) directories.add(at);
  for (const directory of directories) {
    const entries = await readdir(join(root, directory), { withFileTypes: true }).catch(() => []);
    for (const entry of entries) if (entry.isSymbolicLink()) all.add(join(directory, entry.name));
  }
  return [...all];
}

async function listFiles(root: string, options: readonly string[]): Promise<{ files: string[]; stopped?: string }> {
  const files: string[] = [];
  const args = [...options, "--glob=!node_modules", "--files", "--null", "--", "./"];
  const signal = new AbortController().signal;
  const stopped = await ripgrep({ args, cwd: root, delimiter: "\0", signal, late: searchTime() }, (record) => {
    files.push(record.slice(2));
  });
  return { files, ...(stopped !== undefined && { stopped }) };
}
