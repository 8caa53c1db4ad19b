import { dirname, join, resolve } from "node:path";
import type { ExpandedAsk } from "../model.ts";
import { mergeRisks, risksOfCommands } from "../risk.ts";
import { filesBelow } from "./below.ts";
import { type Command, readCommands } from "./command.ts";
import type { Below, Use } from "./effects.ts";
import { type ListDirectory, pathsOf } from "./glob.ts";

/** A path with links and `..` resolved. */
export interface ExpandPlace {
  absolute: string;
  pattern: string;
  external: boolean;
  isDirectory: boolean;
  /** The reason to ask each time, although rules allow the path. */
  alwaysAsk?: string;
}

/** Access to the files that commands name. */
export interface Files {
  /** Resolves a path; throws if it cannot be resolved. */
  resolve(path: string, cwd: string): Promise<ExpandPlace>;
  list: ListDirectory;
}

/** Filters the files that rules allow to read without an ask; undefined if they allow all. */
export type MayRead = ((file: Pick<ExpandPlace, "absolute" | "pattern">) => boolean) | undefined;

/**
 * Expands an ask. A command line becomes its commands, the directories outside the workspace that they reach, the files
 * inside that they read or write, and the scripts that they run; any other ask stays as it is.
 */
export async function expand(ask: ExpandedAsk, files: Files, mayRead: MayRead, home: string): Promise<ExpandedAsk[]> {
  if (ask.permission !== "bash") return [ask];
  const touched = createTouched(mayRead);
  const programs = new Set<string>();
  const byDirectory = new Map<string, ExpandedAsk>();
  const shownAs = new Map<string, string>();
  const lines = ask.patterns.map((line) => ({ line, commands: readCommands(line) }));
  for (const { line, commands } of lines) {
    for (const command of commands) {
      if (command.pipeline) shownAs.set(command.text, command.pipeline.text);
      const cwd = await directoryOf(command, ask.cwd ?? "/", files);
      const before = byDirectory.get(cwd) ?? { ...ask, patterns: [], line, cwd };
      byDirectory.set(cwd, { ...before, patterns: [...new Set([...before.patterns, command.text])] });
      for (const use of command.uses) await touched.add(use, command, cwd, files, home);
      for (const script of command.scripts) await touched.run(script, cwd, files);
      for (const program of command.programs) programs.add(program);
    }
  }
  const [first, ...others] = byDirectory.values();
  if (!first) return [ask];
  const { cwd: _, ...unplaced } = first;
  const runs = touched.scripts();
  const itself = {
    ...(ask.cwd === undefined ? unplaced : first),
    ...(runs.length > 0 && { runs }),
    programs: [...programs],
  };
  const risks = mergeRisks(lines.flatMap(({ commands }) => risksOfCommands(commands)));
  return [...touched.asks(), itself, ...others].map((found) => ({
    ...found,
    ...(risks.length > 0 && { risks }),
    ...(shownAs.size > 0 && found.permission === "bash" && { shownAs }),
  }));
}

async function directoryOf({ directory }: Command, cwd: string, { resolve }: Files): Promise<string> {
  if (directory === "") return cwd;
  return (await resolve(directory, cwd).catch(() => undefined))?.absolute ?? join(cwd, directory);
}

/** Collects the paths that the commands of a line access. */
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
      // Too many matches to judge: ask for their directory, inside the workspace or not.
      if (paths === undefined) outside.add(resolve(cwd, path.replace(/[^/]*[*?[].*$/, "")));
      for (const one of paths ?? []) {
        const place = await files.resolve(one, cwd).catch(() => undefined);
        if (place) put(place, use);
        else outside.add(join(cwd, dirname(one)));
        if (place?.isDirectory && !place.external && use.below) await this.readBelow(place, use.below, files);
      }
    },
    /** Adds the files below a directory inside the workspace that rules restrict. Outside, the ask for the directory covers them. */
    async readBelow(directory: ExpandPlace, reach: Below, files: Files): Promise<void> {
      if (!mayRead) return;
      const found = await filesBelow(directory.absolute, reach, files.list);
      const barred = found.files.map((name) => within(directory, name)).filter((file) => !mayRead(file));
      if (found.more || barred.length > maxBarred) {
        read.set(directory.absolute, { ...directory, alwaysAsk: "holds more than can be judged file by file" });
        return;
      }
      for (const file of barred) read.set(file.absolute, file);
      for (const path of found.links) {
        const place = await files.resolve(path, directory.absolute).catch(() => undefined);
        if (place) put(place, { path, glob: false, as: "read" });
      }
    },
    async run(path: string, cwd: string, files: Files): Promise<void> {
      const place = await files.resolve(path, cwd).catch(() => undefined);
      if (place) scripts.add(place.absolute);
    },
    asks(): ExpandedAsk[] {
      const directories = [...outside];
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
          patterns: directories.map((directory) => (directory === "/" ? "/*" : `${directory}/*`)),
          paths: directories,
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

/** Checks if a text is short enough to be a path for the kernel. */
function canBePath(text: string): boolean {
  return (
    Buffer.byteLength(text) < 4_096 &&
    !text.includes("\0") &&
    text.split("/").every((name) => Buffer.byteLength(name) <= 255)
  );
}

/** Checks if a word is probably a file, and not another kind of name. */
function isLikeFile(path: string): boolean {
  return /[./]/.test(path);
}

function within(directory: ExpandPlace, name: string): ExpandPlace {
  return {
    ...directory,
    absolute: join(directory.absolute, name),
    pattern: directory.pattern === "." ? name : join(directory.pattern, name),
    isDirectory: false,
  };
}
