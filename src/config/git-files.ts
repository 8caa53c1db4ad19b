import { closeSync, constants, fstatSync, openSync, readFileSync, realpathSync, statSync } from "node:fs";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { settingsIn } from "../core/git-settings.ts";
import { listNames } from "../core/read-files.ts";
import { foldPath, type GitFiles, protectedFile } from "../policy/protected-files.ts";

/** A file that was read, or found missing, with the stamp that a change of it changes. */
interface Source {
  file: string;
  stamp: string;
}

interface Known {
  sources: readonly Source[];
  found: GitFiles;
  /** True if any change after the reading shows in a stamp. */
  isOld: boolean;
}

/**
 * Creates the reader of the files that git's settings name: hooks, included settings, attributes, and programs. git runs them at
 * the next `git status` of a person. It reads the settings of the repositories from the directory upwards, of their submodules and linked
 * work trees in the workspace, and of the user, again whenever one has changed; conditions of includes count as met.
 */
export function createGitFiles(home: string): (workspace: { root: string; directory: string }) => GitFiles | undefined {
  const known = new Map<string, Known>();
  /** Results of this turn of the event loop: concurrent calls check the files once. */
  const checked = new Map<string, GitFiles | undefined>();

  function read(root: string, directory: string, key: string): GitFiles | undefined {
    const before = known.get(key);
    const isSame = before?.isOld && before.sources.every(({ file, stamp }) => stampOf(file) === stamp);
    const now = isSame ? before : readNamed(home, root, directory);
    if (known.size >= maxKnown) known.clear();
    known.set(key, now);
    return now.found.code.length === 0 ? undefined : now.found;
  }

  return ({ root, directory }) => {
    const key = `${root}\0${directory}`;
    if (checked.has(key)) return checked.get(key);
    if (checked.size === 0) setImmediate(() => checked.clear());
    const found = read(root, directory, key);
    checked.set(key, found);
    return found;
  };
}

const maxKnown = 1_000;
const maxNested = 1_000;
const maxRepositories = 100;
const maxBytes = 1_048_576;
/** The tick of file systems' timestamps: two changes in one tick have the same stamp. */
const tickMs = 1_000;

function readNamed(home: string, root: string, directory: string): Known {
  const sources = new Map<string, string>();
  /** Settings that were read, with the work trees for which they name files. */
  const done = new Set<string>();
  const named = new Set<string>();
  const hooks = new Set<string>();
  let isOld = true;

  function readFile(file: string): string | undefined {
    sources.set(file, stampOf(file));
    const { text, changedMs } = contentOf(file);
    isOld &&= changedMs === undefined || Math.abs(Date.now() - changedMs) > tickMs;
    return text;
  }

  function readSettings(file: string, tops: readonly string[]): void {
    const key = [file, ...tops].join("\0");
    if (done.has(key)) return;
    done.add(key);
    for (const { name, value } of settingsIn(readFile(file) ?? "")) {
      const path = value.replace(/^~(?=\/)/, home);
      if (included.test(name)) {
        named.add(resolve(dirname(file), path));
        readSettings(resolve(dirname(file), path), tops);
        continue;
      }
      const files = paths.test(name) ? [path] : programs.test(name) ? programFiles(name, value) : [];
      for (const top of tops) for (const each of files) named.add(resolve(top, each));
    }
  }

  /** Reads the settings of the repository with this work tree; false if it is none. */
  function readRepository(top: string): boolean {
    const entry = join(top, ".git");
    sources.set(entry, stampOf(entry));
    if (sources.get(entry) === "") return false;
    const [, linked] = /^gitdir: *(.+?)\s*$/m.exec(contentOf(entry).text ?? "") ?? [];
    const own = linked === undefined ? entry : resolve(top, linked);
    const common = resolve(own, readFile(join(own, "commondir"))?.trim() ?? ".");
    hooks.add(join(common, "hooks"));
    for (const file of [join(common, "config"), join(own, "config.worktree")]) readSettings(file, [top]);
    const modules = join(top, ".gitmodules");
    const submodules = [...settingsIn(readFile(modules) ?? "")].filter(({ name }) => name === "submodule.*.path");
    for (const { value } of submodules) addNested(resolve(top, value));
    const trees = join(common, "worktrees");
    sources.set(trees, stampOf(trees));
    for (const name of listNames(trees)) {
      const entry = readFile(join(trees, name, "gitdir"))?.trim();
      if (entry !== undefined) addNested(dirname(resolve(trees, name, entry)));
    }
    return true;
  }

  /** Every judgement checks each of them, so that a hostile list of submodules would hold up all calls. */
  function addNested(top: string): void {
    if (nested.size < maxNested) nested.add(top);
  }

  const nested = new Set<string>();
  const tops = levels(root, directory).filter(readRepository);
  // A set goes on with what is added meanwhile.
  for (const top of nested)
    if (tops.length < maxRepositories && top.startsWith(root + sep) && !tops.includes(top) && readRepository(top))
      tops.push(top);
  for (let at = dirname(root); tops.length === 0 && at !== dirname(at); at = dirname(at))
    if (readRepository(at)) tops.push(at);
  const ofUser = [join(home, ".gitconfig"), join(home, ".config/git/config"), "/etc/gitconfig"];
  if (tops.length > 0) for (const file of ofUser) readSettings(file, tops);
  const code =
    tops.length === 0 ? [] : [...sources.keys(), ...hooks, ...named].filter((path) => basename(path) !== ".git");
  const found = { ...toGitFiles(named, root), code };
  return { sources: [...sources].map(([file, stamp]) => ({ file, stamp })), found, isOld };
}

/** Returns the directories from the one up to the root of its workspace. */
function levels(root: string, directory: string): string[] {
  const parts = relative(root, directory).split(sep);
  return [root, ...parts.map((_, i) => join(root, ...parts.slice(0, i + 1)))].filter(
    (level, i, all) => all.indexOf(level) === i && !level.includes(`${sep}..`),
  );
}

function toGitFiles(named: ReadonlySet<string>, root: string): Omit<GitFiles, "code"> {
  // What contains the workspace would protect all of it; `/dev/null` is how people switch hooks off.
  const isPlain = (path: string) => !`${root}/`.startsWith(`${path}/`) && !path.startsWith("/dev/");
  const paths = new Set([...named].flatMap((path) => [path, realPathOf(path)]).filter(isPlain));
  const unprotected = [...paths].filter((path) => protectedFile("edit", path) === undefined);
  const parents = unprotected.flatMap((path) => {
    const above = [];
    for (let at = dirname(path); at.startsWith(root + sep); at = dirname(at)) above.push(at);
    return above;
  });
  return { paths: [...new Set(unprotected.map(foldPath))], parents: [...new Set(parents.map(foldPath))] };
}

/** Settings of more settings, of files and directories, and of commands; names have case folded, and their subsection as `*`. */
const included = /^include(if\.\*)?\.path$/;
const paths = /^(core\.(hookspath|attributesfile)|init\.templatedir)$/;
const programs = new RegExp(
  "^(core\\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)|sequence\\.editor|interactive\\.difffilter|" +
    "(filter|diff|merge|difftool|mergetool|browser|man|trailer|submodule)\\.\\*\\.(clean|smudge|process|command|textconv|driver|cmd|path|update)|" +
    "diff\\.external|alias\\.(\\*\\.)?.+|credential\\.(\\*\\.)?helper|gpg\\.(\\*\\.)?(program|defaultkeycommand)|pager\\..+|" +
    "remote\\.\\*\\.(uploadpack|receivepack|vcs)|uploadpack\\.packobjectshook|gc\\.recentobjectshook)$",
);

/** Returns the files that a command of a setting starts: its programs with a slash, and what it hands to an interpreter. */
function programFiles(name: string, value: string): string[] {
  const isShell = value.startsWith("!");
  if (name.startsWith("alias.") && !isShell) return [];
  const text = value
    .replace(/^!/, "")
    .replace(/\$\(git rev-parse --show-toplevel\)|\$\{?(PWD|GIT_WORK_TREE)\}?/g, ".")
    .replace(/["'\\]/g, "");
  return text.split(/[;&|\n(){}`]+/).flatMap((command) => {
    const words = command
      .trim()
      .split(/[\s<>]+/)
      .filter((word) => word !== "" && !/^\w+=/.test(word));
    const [program = "", ...rest] = words;
    const started = program.includes("/") ? [program] : [];
    const operands = interpreters.test(program) ? rest.filter((word) => /^[^-%$]/.test(word)) : [];
    return [...started, ...operands];
  });
}

const interpreters =
  /(^|\/)(\.|source|exec|env|time|nice|command|(ba|da|z|k|fi)?sh|python[\d.]*|node|deno|bun|perl|ruby|php|lua|awk|tclsh|pwsh)$/;

/** Reads a small regular file; waits for no FIFO. */
function contentOf(file: string): { text?: string; changedMs?: number } {
  let opened: number | undefined;
  try {
    opened = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
    const stats = fstatSync(opened);
    if (!stats.isFile() || stats.size > maxBytes) return {};
    return { text: readFileSync(opened, "utf8"), changedMs: stats.ctimeMs };
  } catch {
    return {};
  } finally {
    if (opened !== undefined) closeSync(opened);
  }
}

function realPathOf(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return path;
  }
}

/**
 * Returns a stamp of the content of a file; of a directory, which changes with each file in it, only its identity, unless it lists the
 * linked work trees.
 */
function stampOf(file: string): string {
  try {
    // Mostly there is no such file, and throwing would cost more than the check.
    const stats = statSync(file, { throwIfNoEntry: false });
    if (stats === undefined) return "";
    if (stats.isDirectory() && basename(file) !== "worktrees") return `${stats.dev} ${stats.ino}`;
    return `${stats.dev} ${stats.ino} ${stats.size} ${stats.mtimeMs} ${stats.ctimeMs}`;
  } catch {
    return "";
  }
}
