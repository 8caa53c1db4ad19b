import { join } from "node:path";
import type { Ask } from "../core/ask.ts";
import { isFileKind } from "../policy/rule-list.ts";
import { askedPlace, cautionFor, externalAsks, type ResolvedPath } from "../tool/path-asks.ts";
import type { Plan } from "../tool/tool.ts";
import type { Workspace } from "../tool/workspace.ts";

/** Resolves the paths of an ask. */
export type PathResolver = Pick<Workspace, "resolve">;

/**
 * Makes the plan whose asks the engine judges, whatever tool made it: paths are canonical, those outside the workspace ask
 * `external_directory`, and fields that only the engine may set are left out.
 */
export async function resolvePlanPaths<P extends Pick<Plan, "asks">>(plan: P, files: PathResolver): Promise<P> {
  const resolved = await Promise.all(plan.asks.map((ask) => resolveAsk(ask, files)));
  const asks = resolved.map(({ ask }) => ask);
  const asked = new Set(asks.flatMap(({ permission, patterns }) => (permission === outside ? patterns : [])));
  const missing = new Map<string, Ask>();
  for (const added of resolved.flatMap(({ places }) => places.flatMap(externalAsks))) {
    const [pattern = ""] = added.patterns;
    if (!asked.has(pattern)) missing.set(pattern, added);
  }
  return { ...plan, asks: [...missing.values(), ...asks] };
}

/**
 * Wraps a workspace for one plan: a canonical path that the tool has resolved is not resolved again for its ask. `files`
 * resolves with these results.
 */
export function rememberPaths(workspace: Workspace): { workspace: Workspace; files: PathResolver } {
  const known = new Map<string, Awaited<ReturnType<Workspace["resolve"]>>>();
  return {
    workspace: {
      ...workspace,
      async resolve(path) {
        const found = await workspace.resolve(path);
        known.set(found.absolute, found);
        return found;
      },
    },
    files: { resolve: async (path) => known.get(path) ?? (await workspace.resolve(path)) },
  };
}

const outside = "external_directory";

/** An ask with canonical paths, and the places that it names. */
interface ResolvedAsk {
  ask: Ask;
  places: readonly ResolvedPath[];
}

async function resolveAsk(planned: Ask, files: PathResolver): Promise<ResolvedAsk> {
  const ask = askFields(planned);
  if (ask.permission === outside) return await resolveDirectories(ask, files);
  if (isFileKind(ask.permission)) return await resolveFiles(ask, files);
  const places = ask.paths && (await resolveAll(ask.paths, files));
  // A command without a directory runs in that of the session.
  const place = ask.cwd ?? (ask.permission === "bash" ? "." : undefined);
  const cwd = place === undefined ? undefined : await files.resolve(place);
  return {
    ask: {
      ...ask,
      ...(places && { paths: places.map(({ absolute }) => absolute) }),
      ...(cwd && { cwd: cwd.absolute }),
    },
    places: [...(places ?? []), ...(cwd ? [{ ...cwd, isDirectory: true }] : [])],
  };
}

/** Copies the fields that a tool may set: `restricts` and the results of the command analysis belong to the engine. */
function askFields({
  permission,
  patterns,
  paths,
  cwd,
  isText,
  always,
  alwaysAsk,
  deletes,
  leadsTo,
  metadata,
  wholeCall,
  coversBody,
}: Ask): Ask {
  return {
    permission,
    patterns: [...patterns],
    ...(paths && { paths: [...paths] }),
    ...(cwd !== undefined && { cwd }),
    ...(isText && { isText }),
    ...(always && { always: [...always] }),
    ...(alwaysAsk !== undefined && { alwaysAsk }),
    ...(deletes && { deletes: [...deletes] }),
    ...(leadsTo !== undefined && { leadsTo }),
    ...(metadata && { metadata }),
    ...(wholeCall && { wholeCall }),
    ...(coversBody && { coversBody }),
  };
}

/** Resolves an ask for files. Where a pattern and its path lead to different files, both are asked for. */
async function resolveFiles(ask: Ask, files: PathResolver): Promise<ResolvedAsk> {
  const { patterns, paths = [] } = ask;
  const found = new Map<string, ResolvedPath>();
  for (let i = 0; i < Math.max(patterns.length, paths.length); i++) {
    const [path, pattern] = [paths[i], patterns[i]];
    const byPath = path === undefined ? undefined : await files.resolve(path);
    if (byPath) found.set(byPath.absolute, byPath);
    if (pattern === undefined || pattern === byPath?.pattern) continue;
    const byPattern = await files.resolve(pattern);
    found.set(byPattern.absolute, byPattern);
  }
  const places = [...found.values()];
  const caution = places.map(cautionFor).find(({ alwaysAsk }) => alwaysAsk !== undefined);
  return {
    ask: {
      ...caution,
      ...ask,
      patterns: places.map(({ pattern }) => pattern),
      paths: places.map(({ absolute }) => absolute),
    },
    places: places.map((place) => askedPlace(ask.permission, place)),
  };
}

/** Resolves an ask for directories outside the workspace, whose patterns are `DIRECTORY/*`; it covers no other directory. */
async function resolveDirectories({ wholeCall: _, ...ask }: Ask, files: PathResolver): Promise<ResolvedAsk> {
  const named = [...(ask.paths ?? []), ...ask.patterns.map((pattern) => pattern.replace(/\/\*$/, "") || "/")];
  const directories = new Set((await resolveAll(named, files)).map(({ absolute }) => absolute));
  const paths = [...directories];
  return { ask: { ...ask, patterns: paths.map((path) => join(path, "*")), paths }, places: [] };
}

async function resolveAll(paths: readonly string[], files: PathResolver): Promise<ResolvedPath[]> {
  return await Promise.all(paths.map((path) => files.resolve(path)));
}
