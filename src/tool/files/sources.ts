import { createHash } from "node:crypto";
import { readdir, readFile, readlink, stat } from "node:fs/promises";
import { extname, join, relative } from "node:path";

/** A file of code that defines tools, or that such a file imports. */
export interface SourceFile {
  /** Relative to the directory. */
  path: string;
  sha256: string;
}

/** The code in a tool directory at one moment. */
export interface Sources {
  files: SourceFile[];
  /** Files directly in `tool` or `tools`: each is loaded. */
  entries: SourceFile[];
  /** Digest of all files but the entries. */
  shared: string;
  /** Digest of all files, including those of installed packages. */
  digest: string;
}

const codeExtensions = new Set([".ts", ".mts", ".cts", ".js", ".mjs", ".cjs", ".json", ".node", ".wasm"]);
const maxFiles = 50_000;

/** Makes a text that changes when code in the directories changes, except in installed packages. Reads no file. */
export async function stampOf(directories: readonly string[]): Promise<string> {
  const stamps: string[] = [];
  for await (const path of filesIn(directories, false)) {
    // A file that is removed meanwhile is missing from the next stamp.
    const stats = await stat(path, { bigint: true }).catch(() => undefined);
    stamps.push(`${path} ${stats?.ino} ${stats?.size} ${stats?.mtimeNs}`);
  }
  return stamps.sort().join("\n");
}

/** Reads all code in `directories`, which are `root` or lie in it. */
export async function readSources(root: string, directories: readonly string[]): Promise<Sources> {
  const files: SourceFile[] = [];
  for await (const path of filesIn(directories, true)) {
    const content = await readFile(path).catch(() => readlink(path));
    files.push({ path: relative(root, path), sha256: createHash("sha256").update(content).digest("hex") });
  }
  files.sort((a, b) => (a.path < b.path ? -1 : 1));
  const isEntry = ({ path }: SourceFile) => /^tools?\/[^/]+\.(ts|js)$/.test(path) && !path.endsWith(".d.ts");
  return {
    files,
    entries: files.filter(isEntry),
    shared: digestOf(files.filter((file) => !isEntry(file))),
    digest: digestOf(files),
  };
}

function digestOf(files: readonly SourceFile[]): string {
  return createHash("sha256")
    .update(JSON.stringify(files.map(({ path, sha256 }) => [path, sha256])))
    .digest("hex");
}

async function* filesIn(directories: readonly string[], withPackages: boolean): AsyncGenerator<string> {
  const ahead = [...directories];
  let count = 0;
  for (let at = ahead.pop(); at !== undefined; at = ahead.pop()) {
    for (const entry of await readdir(at, { withFileTypes: true }).catch(() => [])) {
      const path = join(at, entry.name);
      const isSkipped = entry.name === ".git" || (entry.name === "node_modules" && !withPackages);
      if (entry.isDirectory() && !isSkipped) ahead.push(path);
      // A link to a directory counts by its target path.
      if (!entry.isSymbolicLink() && !(entry.isFile() && codeExtensions.has(extname(entry.name)))) continue;
      count += 1;
      if (count > maxFiles) {
        throw new Error(
          `${directories[0]} holds more than ${maxFiles} files of code; move those that are no tools elsewhere`,
        );
      }
      yield path;
    }
  }
}
