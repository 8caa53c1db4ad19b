import { dirname, join, resolve } from "node:path";
import type { ExpandedAsk } from "../model.ts";
import { filesBelow } from "./below.ts";
import { type Command, readCommands } from "./command.ts";
import type { Below, Use } from "./effects.ts";
import { type ListFolder, pathsOf } from "./glob.ts";

/** A path after links and `..` were looked through. */
export interface ExpandPlace {
  absolute: string;
  pattern: string;
  external: boolean;
  isDirectory: boolean;
  /** Why touching it is asked each time, although rules allow it. */
  alwaysAsk?: string;
}

/** How paths of commands are looked up. */
export interface Files {
  /** Throws where a path cannot be followed. */
  resolve(path: string, cwd: string): Promise<ExpandPlace>;
  list: ListFolder;
}

/** Whether rules let a file be read without an ask; undefined where they let all. */
export type MayRead = ((file: Pick<ExpandPlace, "absolute" | "pattern">) => boolean) | undefined;

/**
 * What an ask stands for: itself, or of a command line each of its commands, the folders outside the workspace that
 * they reach, the files inside that they read or write, and the scripts that they run.
 */
export async function expand(ask: ExpandedAsk, files: Files, mayRead: MayRead, home: string): Promise<ExpandedAsk[]> {
  if (ask.permission !== "bash") return [ask];
  const touched = createTouched(mayRead);
  const programs = new Set<string>();
  const byFolder = new Map<string, ExpandedAsk>();
  for (const line of ask.patterns) {
    for (const command of readCommands(line)) {
      const cwd = await folderOf(command, ask.cwd ?? "/", files);
      const before = byFolder.get(cwd) ?? { ...ask, patterns: [], line, cwd };
      byFolder.set(cwd, { ...before, patterns: [...new Set([...before.patterns, command.text])] });
      for (const use of command.uses) await touched.add(use, command, cwd, files, home);
      for (const script of command.scripts) await touched.run(script, cwd, files);
      for (const program of command.programs) programs.add(program);
    }
  }
  const [first, ...others] = byFolder.values();
  if (!first) return [ask];
  const { cwd: _, ...unplaced } = first;
  const runs = touched.scripts();
  const itself = {
    ...(ask.cwd === undefined ? unplaced : first),
    ...(runs.length > 0 && { runs }),
    programs: [...programs],
  };
  return [...touched.asks(), itself, ...others];
}

async function folderOf({ folder }: Command, cwd: string, { resolve }: Files): Promise<string> {
  if (folder === "") return cwd;
  return (await resolve(folder, cwd).catch(() => undefined))?.absolute ?? join(cwd, folder);
}

/** Collects what the commands of a line touch. */
function createTouched(mayRead: MayRead) {
  const outside = new Set<string>();
  const read = new Map<string, ExpandPlace>();
  const changed = new Map<string, ExpandPlace>();
  const written = new Map<string, ExpandPlace>();
  const scripts = new Set<string>();

  function put(place: ExpandPlace, use: Use): void {
    if (place.external) outside.add(place.isDirectory ? place.absolute : dirname(place.absolute));
    if (use.as === "read" || (use.as === "may" && isLikeFile(use.path))) read.set(place.absolute, place);
    if (use.as === "change") changed.set(place.absolute, place);
    if (use.as !== "write") return;
    const targets = place.isDirectory && use.names ? use.names.map((name) => within(place, name)) : [place];
    for (const target of targets) written.set(target.absolute, target);
  }

  return {
    async add(use: Use, { opaque }: Command, cwd: string, files: Files, home: string): Promise<void> {
      if (harmlessFiles.has(use.path) || !canBePath(use.path)) return;
      const path = opaque === undefined ? use.path : use.path.replace(/^(~|\$HOME|\$\{HOME\})(?=\/|$)/, home);
      const paths = use.glob ? await pathsOf(path, cwd, files.list) : [path];
      // More than can be looked at: the folder in which they lie is asked about, wherever it is.
      if (paths === undefined) outside.add(resolve(cwd, path.replace(/[^/]*[*?[].*$/, "")));
      for (const one of paths ?? []) {
        const place = await files.resolve(one, cwd).catch(() => undefined);
        if (place) put(place, use);
        else outside.add(join(cwd, dirname(one)));
        if (place?.isDirectory && !place.external && use.below) await this.readBelow(place, use.below, files);
      }
    },
    /** What lies below a folder outside is asked about with the folder; inside, only what a rule is about. */
    async readBelow(folder: ExpandPlace, reach: Below, files: Files): Promise<void> {
      if (!mayRead) return;
      const found = await filesBelow(folder.absolute, reach, files.list);
      const barred = found.files.map((name) => within(folder, name)).filter((file) => !mayRead(file));
      if (found.more || barred.length > maxBarred) {
        read.set(folder.absolute, { ...folder, alwaysAsk: "holds more than can be judged file by file" });
        return;
      }
      for (const file of barred) read.set(file.absolute, file);
      for (const path of found.links) {
        const place = await files.resolve(path, folder.absolute).catch(() => undefined);
        if (place) put(place, { path, glob: false, as: "read" });
      }
    },
    async run(path: string, cwd: string, files: Files): Promise<void> {
      const place = await files.resolve(path, cwd).catch(() => undefined);
      if (place) scripts.add(place.absolute);
    },
    asks(): ExpandedAsk[] {
      const folders = [...outside];
      const inside = (places: Map<string, ExpandPlace>) => [...places.values()].filter(({ external }) => !external);
      const files = (permission: string, places: readonly ExpandPlace[], restricts?: true): ExpandedAsk[] =>
        [...Map.groupBy(places, ({ alwaysAsk }) => alwaysAsk)].map(([alwaysAsk, alike]) => ({
          permission,
          patterns: alike.map(({ pattern }) => pattern),
          paths: alike.map(({ absolute }) => absolute),
          ...(restricts && { restricts }),
          ...(alwaysAsk !== undefined && { alwaysAsk }),
        }));
      const asks: ExpandedAsk[] = [
        {
          permission: "external_directory",
          patterns: folders.map((folder) => (folder === "/" ? "/*" : `${folder}/*`)),
          paths: folders,
        },
        ...files("read", inside(read), true),
        ...files("edit", inside(changed), true),
        ...files("edit", [...written.values()]),
      ];
      return asks.filter(({ patterns }) => patterns.length > 0);
    },
    scripts: () => [...scripts],
  };
}

const maxBarred = 100;
const harmlessFiles = new Set(["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero", ""]);

/** Whether the kernel takes a text as a path: its names are short enough. */
function canBePath(text: string): boolean {
  return (
    Buffer.byteLength(text) < 4_096 &&
    !text.includes("\0") &&
    text.split("/").every((name) => Buffer.byteLength(name) <= 255)
  );
}

/** Whether a word is likely to be a file and not a name of something else. */
function isLikeFile(path: string): boolean {
  return /[./]/.test(path);
}

function within(folder: ExpandPlace, name: string): ExpandPlace {
  return {
    ...folder,
    absolute: join(folder.absolute, name),
    pattern: folder.pattern === "." ? name : join(folder.pattern, name),
    isDirectory: false,
  };
}
