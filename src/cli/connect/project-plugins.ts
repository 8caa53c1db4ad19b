import { readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { listNames, readIfExists } from "../../core/read-files.ts";
import { digestOfText, findEntry } from "./file-change.ts";

/** Digests of files that a person accepted, by path. */
export type AcceptedPlugins = Readonly<Record<string, string>>;

/** Place of an agent's session. */
interface Project {
  readonly directory: string;
  /** Root of the repository. */
  readonly root: string;
  readonly home: string;
}

/**
 * Returns the files through which a project loads code into opencode, with their digests: it runs after our plugin, in its process, and
 * can change what was approved. opencode looks for them from its directory up to the root of the repository; those of the user's home
 * are the user's own.
 */
export function findProjectPlugins({ directory, root, home }: Project): AcceptedPlugins {
  const found: Record<string, string> = {};
  for (const above of directoriesUp(directory, root)) {
    if (above === home) continue;
    const settings = join(above, ".opencode");
    // Also names that begin with a dot.
    for (const directory of ["plugin", "plugins", "tool", "tools"].map((name) => join(settings, name)))
      for (const file of listNames(directory).filter((name) => /\.[tj]s$/.test(name)))
        found[join(directory, file)] = digestOfText(readFileSync(join(directory, file), "utf8"));
    for (const name of ["opencode.json", "opencode.jsonc"])
      for (const file of [join(above, name), join(settings, name)]) {
        const text = readIfExists(file);
        if (text !== undefined && findEntry(file, text, ["plugin"]) !== undefined) found[file] = digestOfText(text);
      }
  }
  return found;
}

/** Returns the files that were not accepted, or have changed since. */
export function notAccepted(found: AcceptedPlugins, accepted: AcceptedPlugins = {}): string[] {
  return Object.keys(found).filter((path) => found[path] !== accepted[path]);
}

/** Describes code that nobody accepted, with the next step. */
export function notAcceptedText(files: readonly string[]): { fact: string; next: string } {
  const rest = files.length > maxNamed ? ` and ${files.length - maxNamed} more` : "";
  return {
    fact: `opencode loads ${files.slice(0, maxNamed).join(", ")}${rest} of this project, which can change what was approved and which nobody accepted as it is now, so no tool runs here`,
    next: "read it, then run in this directory: toolgate connect opencode --accept-plugins",
  };
}

const maxNamed = 3;

/** Returns the refusal of every tool in a project with code that nobody accepted; the record of the connector stands next to its token. */
export function refusalOf(project: Project, tokenFile: string): string | undefined {
  const found = findProjectPlugins(project);
  if (Object.keys(found).length === 0) return undefined;
  const record: unknown = JSON.parse(readIfExists(join(dirname(tokenFile), "opencode.json")) ?? "{}");
  const { accepted = {} } = record as { accepted?: AcceptedPlugins };
  const files = notAccepted(found, accepted);
  if (files.length === 0) return undefined;
  const { fact, next } = notAcceptedText(files);
  return `Toolgate: ${fact}. Nothing was run. Next: ${next}`;
}

function directoriesUp(directory: string, root: string): string[] {
  const parent = dirname(directory);
  const isLast = parent === directory || relative(root, directory) === "";
  return isLast ? [directory] : [directory, ...directoriesUp(parent, root)];
}
