import { dirname, join, resolve } from "node:path";
import { type ExpandedAsk, factsOfCall } from "../model.ts";
import { mergeRisks, risksOfCommands } from "../risk.ts";
import { type Command, type LineReading, readCommands } from "./command.ts";
import { type Containment, contain } from "./containment.ts";
import type { Use } from "./effects.ts";
import { madeNames, nameCaution, pathsOf } from "./glob.ts";
import { leavesRemotes, type PlacedPush, pushOf } from "./push.ts";
import {
  type Allowed,
  addBelow,
  addCode,
  addCopies,
  asksOf,
  canBePath,
  createTouched,
  type Files,
  put,
  type Touched,
} from "./touched.ts";
import { addInRepository, addObjects, type GitPlace, repositoryAt, topOfObjects } from "./touched-repository.ts";

/**
 * Expands an ask. A command line becomes its commands, the directories outside the workspace that they reach, the files
 * inside that they read or write, and the scripts that they run; any other ask stays as it is.
 */
export async function expand(
  ask: ExpandedAsk,
  files: Files,
  allowed: Allowed,
  home: string,
  containment?: Containment & { registries: readonly string[] },
): Promise<ExpandedAsk[]> {
  if (ask.permission !== "bash") return [ask];
  const touched = createTouched(allowed, ask.isConfined === true);
  const programs = new Set<string>();
  const repositories = new Set<string>();
  const pushes: PlacedPush[] = [];
  let runsMore = false;
  const byPlace = new Map<string, ExpandedAsk>();
  const pipelines = new Map<string, string>();
  const readings = new Map<string, LineReading>(ask.readings);
  const lines = ask.patterns.map((line) => {
    const reading = readings.get(line) ?? { commands: readCommands(line) };
    readings.set(line, reading);
    return { line, ...reading };
  });
  const isCalm = lines.every(({ commands }) => commands.every(leavesRemotes));
  const place = (command: Command) => directoryOf(command, ask.cwd ?? "/", files);
  for (const { line, commands } of lines) {
    const isFed = commands.some(({ pipeline }) => pipeline !== undefined);
    const made = await madeNames(commands, place, files.list);
    for (const command of commands) {
      if (command.pipeline) pipelines.set(command.text, command.pipeline.text);
      const cwd = await place(command);
      const repository = usesGit(command) ? await repositoryAt(cwd, files) : undefined;
      if (repository?.top !== undefined) repositories.add(repository.top);
      const push = isCalm && repository?.top !== undefined ? pushOf(command) : undefined;
      if (push && repository?.top !== undefined) pushes.push({ top: repository.top, ...push });
      const alwaysAsk =
        repository?.problem ??
        (await foreignSource(command, cwd, files)) ??
        (await nameCaution(command, place, made, files.list));
      const key = JSON.stringify([cwd, alwaysAsk]);
      const before = byPlace.get(key) ?? { ...ask, patterns: [], line, cwd };
      byPlace.set(key, {
        ...before,
        patterns: [...new Set([...before.patterns, command.text])],
        ...(alwaysAsk !== undefined && { alwaysAsk }),
      });
      const placed = { cwd, top: repository?.top, isAlone: isAlone(commands) };
      for (const use of command.uses) await addUse(touched, use, command, placed, files, home);
      await addCode(touched, command, isFed, cwd, files);
      runsMore ||= command.code.runsMore;
      for (const program of command.programs) programs.add(program);
    }
  }
  const [first, ...others] = byPlace.values();
  if (!first) return [ask];
  const { cwd: _, ...unplaced } = first;
  const itself = {
    ...(ask.cwd === undefined ? unplaced : first),
    code: {
      ...{ files: [...touched.code.values()], runsMore },
      ...{ unknown: [...touched.unknownCode], repositories: [...repositories], pushes },
    },
    programs: [...programs],
  };
  const commands = lines.flatMap((line) => line.commands);
  const places = asksOf(touched);
  const isOutside = async () => (await files.resolve(".", ask.cwd ?? "/").catch(() => undefined))?.external ?? true;
  const held =
    containment &&
    contain(
      {
        ...{ commands, lines: [itself, ...others], touched, asks: places },
        ...{ startsOutside: await isOutside(), absent: await absentOf(touched.outside, files) },
      },
      containment,
    );
  // Only there their code runs behind the sandbox alone.
  const registries = held?.contained === true ? containment?.registries : undefined;
  const risks = mergeRisks(
    lines.flatMap(({ commands, risks }) =>
      registries ? risksOfCommands(commands, registries) : (risks ?? risksOfCommands(commands)),
    ),
  );
  return [...(held?.asks ?? places), itself, ...others].map((found) => ({
    ...found,
    ...factsOfCall(ask),
    ...(risks.length > 0 && { risks }),
    ...(held && { contained: held.contained }),
    ...(found.permission === "bash" && { readings, ...(pipelines.size > 0 && { pipelines }) }),
  }));
}

/** Returns the directories that do not exist. */
async function absentOf(directories: ReadonlySet<string>, { resolve }: Files): Promise<Set<string>> {
  const found = [...directories].map(async (path) => {
    const place = await resolve(path, "/").catch(() => undefined);
    return place && !place.isDirectory ? [path] : [];
  });
  return new Set((await Promise.all(found)).flat());
}

/** Checks if a line is understood as one command that runs no other one. */
const isAlone = ([first, ...others]: readonly Command[]) =>
  others.length === 0 && first?.opaque === undefined && first?.inner.length === 0;

const usesGit = ({ programs, uses }: Command) =>
  programs.some((program) => /(^|\/)git$/.test(program)) || uses.some(({ within }) => within !== undefined);

async function foreignSource({ uses }: Command, cwd: string, files: Files): Promise<string | undefined> {
  for (const { path, within } of uses) {
    if (within?.as !== "source" || !canBePath(path)) continue;
    const place = await files.resolve(path, cwd).catch(() => undefined);
    if (place?.isDirectory) return `reaches ${path}, a repository in a directory`;
  }
  return undefined;
}

async function directoryOf({ directory }: Command, cwd: string, { resolve }: Files): Promise<string> {
  if (directory === "") return cwd;
  return (await resolve(directory, cwd).catch(() => undefined))?.absolute ?? join(cwd, directory);
}

/** Adds a path that a command names. */
async function addUse(
  touched: Touched,
  use: Use,
  { opaque }: Command,
  placed: GitPlace,
  files: Files,
  home: string,
): Promise<void> {
  const { cwd } = placed;
  if (harmlessFiles.has(use.path) || !canBePath(use.path) || use.within?.as === "source") return;
  if (use.within) return await addInRepository(touched, use, use.within, placed, files);
  const path = opaque === undefined ? use.path : use.path.replace(/^(~|\$HOME|\$\{HOME\})(?=\/|$)/, home);
  const paths = use.glob ? await pathsOf(path, cwd, files.list) : [path];
  // Too many matches to judge: ask for their directory, inside the workspace or not.
  if (paths === undefined) touched.outside.add(resolve(cwd, path.replace(/[^/]*[*?[].*$/, "")));
  for (const one of paths ?? []) {
    const place = await files.resolve(one, cwd).catch(() => undefined);
    const store = place && use.as !== "write" ? topOfObjects(place.absolute) : undefined;
    if (store !== undefined) await addObjects(touched, "history", [], { ...placed, top: store }, files);
    if (place) put(touched, place, use);
    else touched.outside.add(join(cwd, dirname(one)));
    if (!place || place.external) continue;
    if (use.below && place.isDirectory) await addBelow(touched, place, use, files);
    // A copy of a directory to a name that does not exist yet gets that name.
    for (const { from, to } of use.trees ?? [])
      await addCopies(touched, place, { from, to: place.isDirectory ? to : "" }, cwd, files);
  }
}

const harmlessFiles = new Set(["/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/zero", ""]);
