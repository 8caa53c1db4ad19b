import { createHash } from "node:crypto";
import { readdir, readFile, readlink, stat } from "node:fs/promises";
import { extname, join, relative } from "node:path";

/** A file of people's that a tool can be made of, or that one imports. */
export interface Source {
  /** Relative to the folder. */
  path: string;
  sha256: string;
}

/** What a folder of tools holds at a time. */
export interface Sources {
  /** All of them. */
  files: Source[];
  /** Files directly in `tool` or `tools`, each of which is loaded. */
  entries: Source[];
  /** Changes when any other code does. */
  shared: string;
  /** Changes when any code in the folder does, that of installed packages included. */
  digest: string;
}

const code = new Set([".ts", ".mts", ".cts", ".js", ".mjs", ".cjs", ".json", ".node", ".wasm"]);
const maxFiles = 50_000;

/** A text that changes when code in the folders, without installed packages, is changed; it reads no file. */
export async function stampOf(folders: readonly string[]): Promise<string> {
  const stamps: string[] = [];
  for await (const path of filesIn(folders, false)) {
    // A file that went away meanwhile is missing the next time.
    const stats = await stat(path, { bigint: true }).catch(() => undefined);
    stamps.push(`${path} ${stats?.ino} ${stats?.size} ${stats?.mtimeNs}`);
  }
  return stamps.sort().join("\n");
}

/** Reads all code in the folders, which lie in a folder or are it. */
export async function readSources(folder: string, folders: readonly string[]): Promise<Sources> {
  const sources: Source[] = [];
  for await (const path of filesIn(folders, true)) {
    const content = await readFile(path).catch(() => readlink(path));
    sources.push({ path: relative(folder, path), sha256: createHash("sha256").update(content).digest("hex") });
  }
  sources.sort((a, b) => (a.path < b.path ? -1 : 1));
  const isEntry = ({ path }: Source) => /^tools?\/[^/]+\.(ts|js)$/.test(path) && !path.endsWith(".d.ts");
  return {
    files: sources,
    entries: sources.filter(isEntry),
    shared: digestOf(sources.filter((source) => !isEntry(source))),
    digest: digestOf(sources),
  };
}

function digestOf(sources: readonly Source[]): string {
  return createHash("sha256")
    .update(JSON.stringify(sources.map(({ path, sha256 }) => [path, sha256])))
    .digest("hex");
}

async function* filesIn(folders: readonly string[], packages: boolean): AsyncGenerator<string> {
  const ahead = [...folders];
  let found = 0;
  for (let at = ahead.pop(); at !== undefined; at = ahead.pop()) {
    for (const entry of await readdir(at, { withFileTypes: true }).catch(() => [])) {
      const path = join(at, entry.name);
      if (entry.isDirectory() && entry.name !== ".git" && (packages || entry.name !== "node_modules")) ahead.push(path);
      // A link to a folder counts by where it leads.
      if (!entry.isSymbolicLink() && !(entry.isFile() && code.has(extname(entry.name)))) continue;
      found += 1;
      if (found > maxFiles)
        throw new Error(`${folders[0]} holds more than ${maxFiles} files of code; move what is no tool elsewhere`);
      yield path;
    }
  }
}
