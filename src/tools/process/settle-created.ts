import { randomUUID } from "node:crypto";
import {
  chmodSync,
  constants,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmdirSync,
  symlinkSync,
  unlinkSync,
} from "node:fs";
import { copyFile, mkdir, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import type { PreviewSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { isWithin } from "../../core/paths.ts";
import { visible } from "../../core/visible.ts";
import type { Confined, Covered } from "../../sandbox/layers.ts";
import { isUndecodable, rawPathOf } from "../../sandbox/mount-plan.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { ToolFailure } from "../../tool/errors.ts";
import { inDirectory, openDirectory, openFile } from "../../tool/open-file.ts";
import type { ToolContext } from "../../tool/tool.ts";
import { compare } from "../fs/diff.ts";
import { shownPath } from "./confine-command.ts";

/** Outcome for a path that a command made although it may not. */
interface SettledPath extends QuarantinedPath {
  /** `restored` paths are in their place; of the others the text says what happened. */
  readonly outcome: "restored" | "refused" | "denied" | "unasked" | "unmoved";
  readonly text: string;
}

/** Files that a command made although it may not, for its result. */
export interface SettledCreated {
  /** Lines for the model; undefined if there is nothing. */
  note: string | undefined;
  metadata: JsonObject[];
}

/** The parts that settle what commands made. */
export interface CreatedParts {
  quarantine: Quarantine | undefined;
  sandbox: Pick<Sandbox, "running">;
}

/** Maximum number of paths that an approver is asked about. */
const maxAsked = 20;
const maxNoted = 5;

/** Moves what the command made although it may not into the quarantine. Call it when the command has ended, however it did. */
export async function takeCreated(
  { quarantine }: CreatedParts,
  confined: Pick<Confined, "created">,
  { sessionId, callId, workspace }: Pick<ToolContext, "sessionId" | "callId" | "workspace">,
): Promise<QuarantinedPath[]> {
  const created = await confined.created().catch((cause: unknown) => {
    throw new ToolFailure(
      `The command has ended, but it is unknown whether it made files that it may not make: ${String(cause)}. Look at what it made.`,
      { cause },
    );
  });
  if (created.length === 0) return [];
  const source = { sessionId, callId, workspace: workspace.directory };
  return (await quarantine?.take(created, source)) ?? created.map((covered) => ({ ...covered, place: undefined }));
}

/** Asks an approver about what was taken, unless rules deny it, and moves it back if that is allowed. */
export async function settleCreated(
  parts: CreatedParts,
  taken: readonly QuarantinedPath[],
  ctx: Pick<ToolContext, "ask" | "judge" | "signal" | "workspace">,
): Promise<SettledCreated> {
  const patternOf = ({ path }: QuarantinedPath) => patternIn(path, ctx.workspace.directory);
  const isDenied = (one: QuarantinedPath) =>
    ctx.judge({ permission: "edit", patterns: [patternOf(one)], paths: [one.path] }).action === "deny";
  const moved = taken.filter(({ place }) => place !== undefined);
  const allowable = moved.filter((one) => !isDenied(one));
  const asked = allowable.length <= maxAsked ? allowable : [];
  const isAllowed = asked.length > 0 && (await askAbout(asked, patternOf, ctx));
  const settled: SettledPath[] = [];
  for (const one of taken) {
    const problem = isAllowed && asked.includes(one) ? await putBack(parts, one) : undefined;
    settled.push({
      ...one,
      ...outcomeOf(one, { isAllowed, isAsked: asked.includes(one), isDenied: isDenied(one), problem }),
    });
  }
  return resultOf(settled, ctx.workspace.directory);
}

async function putBack({ quarantine, sandbox }: CreatedParts, one: QuarantinedPath): Promise<string | undefined> {
  // First, so that no command that ends now takes it again.
  sandbox.running.wrote(one.path);
  return quarantine ? await quarantine.putBack(one) : "there is no quarantine";
}

/** Asks once about all paths; returns false if that is refused or expires. */
async function askAbout(
  asked: readonly QuarantinedPath[],
  patternOf: (one: QuarantinedPath) => string,
  { ask, signal }: Pick<ToolContext, "ask" | "signal">,
): Promise<boolean> {
  try {
    await ask(
      {
        permission: "edit",
        patterns: asked.map(patternOf),
        paths: asked.map(({ path }) => path),
        alwaysAsk:
          "was made by a command that may not make it, and is in quarantine; if you allow it, it is moved back",
        refusable: true,
      },
      previewOf(asked, patternOf),
    );
    return true;
  } catch (error) {
    if (signal.aborted) throw error;
    return false;
  }
}

function outcomeOf(
  { place }: QuarantinedPath,
  about: { isAllowed: boolean; isAsked: boolean; isDenied: boolean; problem: string | undefined },
): Pick<SettledPath, "outcome" | "text"> {
  const where = `It is in quarantine (${place}), from which the operator can take it.`;
  const edits = "To make such a file, name it in edits.";
  if (place === undefined)
    return {
      outcome: "unmoved",
      text: "It could not be moved into quarantine: remove it, or show it to the operator.",
    };
  if (about.isDenied) return { outcome: "denied", text: `Rules deny it. ${where}` };
  if (!about.isAsked)
    return { outcome: "unasked", text: `These are more than ${maxAsked}, so no approver was asked. ${where} ${edits}` };
  if (!about.isAllowed) return { outcome: "refused", text: `No approver allowed it. ${where}` };
  if (about.problem === undefined)
    return { outcome: "restored", text: "An approver allowed it, and it is in its place again." };
  return {
    outcome: "refused",
    text: `An approver allowed it, but it cannot be moved back: ${about.problem}. ${where}`,
  };
}

function resultOf(settled: readonly SettledPath[], workspace: string): SettledCreated {
  if (settled.length === 0) return { note: undefined, metadata: [] };
  const lines = settled
    .slice(0, maxNoted)
    .map(
      ({ path, reason, text }) =>
        `${shownPath(path, workspace)} was made by this command, which may not make it: ${visible(reason)}. ${text}`,
    );
  const more = settled.length - lines.length;
  return {
    note: [...lines, ...(more > 0 ? [`The same holds for ${more} more, which the metadata lists.`] : [])].join("\n"),
    metadata: settled.slice(0, maxListed).map(({ path, reason, outcome, place }) => ({
      ...{ path: shownPath(path, workspace), reason: visible(reason), outcome },
      ...(place !== undefined && outcome !== "restored" && { place }),
    })),
  };
}

const maxListed = 100;

function patternIn(path: string, workspace: string): string {
  const below = relative(workspace, path);
  return below.startsWith("../") ? path : below;
}

/** Shows approvers the text of what was made. */
function previewOf(
  asked: readonly QuarantinedPath[],
  patternOf: (one: QuarantinedPath) => string,
): MessageInitShape<typeof PreviewSchema> {
  const changes = asked.flatMap((one) =>
    textsIn(one.place ?? "").map(({ below, text }) => compare(join(patternOf(one), below), undefined, text)),
  );
  return {
    paths: asked.map(patternOf),
    diff: changes.map(({ diff }) => diff).join(""),
    additions: changes.reduce((sum, { additions }) => sum + additions, 0),
  };
}

const maxShownFiles = 20;
const maxShownBytes = 65_536;

/** Reads the text of a path in the quarantine, or of the files below it. Links are not followed: they may lead anywhere. */
function textsIn(place: string): { below: string; text: string }[] {
  const isDirectory = lstatSync(place, { throwIfNoEntry: false })?.isDirectory();
  const names = isDirectory ? readdirSync(place, { recursive: true, encoding: "utf8" }).sort() : [""];
  const texts = names.flatMap((below) => {
    const text = textOf(join(place, below));
    return text === undefined ? [] : [{ below, text }];
  });
  return texts.slice(0, maxShownFiles);
}

function textOf(path: string): string | undefined {
  try {
    const stats = lstatSync(path);
    if (stats.isSymbolicLink()) return `(a link to ${readlinkSync(path)})\n`;
    if (!stats.isFile()) return undefined;
    return stats.size > maxShownBytes ? `(${stats.size} bytes)\n` : readFileSync(path, "utf8");
  } catch {
    return "(cannot be read)\n";
  }
}

/** A path that a command made although it may not, and where it is now. */
interface QuarantinedPath extends Covered {
  /** Canonical path in the quarantine; undefined if it could not be moved there. */
  readonly place: string | undefined;
}

/** The call whose command made the paths. */
interface QuarantineSource {
  sessionId: string;
  callId: string;
  workspace: string;
}

/** A directory of the service, which no tool can reach, for what commands made although they may not. Nothing in it is removed. */
export interface Quarantine {
  /** Moves paths into a new directory of it, together with a description of them. */
  take(created: readonly Covered[], source: QuarantineSource): Promise<QuarantinedPath[]>;
  /** Moves a path back, without set-ID bits of its files; returns the reason if it cannot. */
  putBack(taken: QuarantinedPath): Promise<string | undefined>;
}

/** Creates the quarantine in a directory; it is made when it is needed. */
export function createQuarantine(directory: string): Quarantine {
  return {
    async take(created, source) {
      const name = `${new Date().toISOString().replaceAll(/[:.]/g, "-")}-${randomUUID().slice(0, 8)}`;
      const files = join(directory, name, "files");
      await mkdir(files, { recursive: true, mode: 0o700 });
      const about = created.map(({ path, reason }) => ({ path, reason, movedTo: placeOf(path, source) }));
      // First, so that a crash leaves no file without a description.
      await writeFile(join(directory, name, "about.json"), `${JSON.stringify({ ...source, files: about }, null, 2)}\n`);
      const taken: QuarantinedPath[] = [];
      for (const covered of created) {
        const place = join(files, placeOf(covered.path, source));
        const isMoved = await move(covered.path, place).catch(() => false);
        taken.push({ ...covered, place: isMoved ? place : undefined });
      }
      return taken;
    },
    async putBack({ path, place }) {
      if (place === undefined) return "it was not moved";
      try {
        clearSetId(place);
        return (await move(place, path)) ? undefined : `${path} exists again`;
      } catch (cause) {
        return cause instanceof Error ? cause.message : String(cause);
      }
    },
  };
}

/** Takes set-ID bits from a file, or those below a directory: nothing that a command left may run as the user of the service. */
function clearSetId(path: string): void {
  const stats = lstatSync(path);
  if (stats.isDirectory()) for (const name of readdirSync(path)) clearSetId(join(path, name));
  if (!stats.isSymbolicLink() && (stats.mode & 0o6000) !== 0) chmodSync(path, stats.mode & 0o1777);
}

/** Returns the path in the quarantine: that in the workspace, or the whole path outside of it. */
function placeOf(path: string, { workspace }: QuarantineSource): string {
  return isWithin(path, workspace) ? relative(workspace, path) : join("outside", path);
}

/** Moves a file or directory to a path that is free; returns false if it is not. A link that replaced a directory is not followed. */
async function move(from: string, to: string): Promise<boolean> {
  if (isBelowNothing(to)) mkdirSync(dirname(to), { recursive: true, mode: 0o700 });
  using source = openDirectory(dirname(from));
  using target = openDirectory(dirname(to));
  const [old, place] = [inDirectory(source, from), inDirectory(target, to)];
  // One whose name is not UTF-8 gets the name under which it is reported.
  if (isUndecodable(from) && !lstatSync(old, { throwIfNoEntry: false })) renameSync(rawPathOf(old), old);
  if (lstatSync(place, { throwIfNoEntry: false })) return false;
  try {
    renameSync(old, place);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "EXDEV")) throw error;
    await carry(from, to);
  }
  return true;
}

/**
 * Moves a file or directory to a path that is free on another disk. Each directory is held open: another command that still runs may
 * put links in the way. What is neither file, directory nor link is removed.
 */
async function carry(from: string, to: string): Promise<void> {
  using source = openDirectory(dirname(from));
  using target = openDirectory(dirname(to));
  const [old, place] = [inDirectory(source, from), inDirectory(target, to)];
  const stats = lstatSync(old);
  if (stats.isDirectory()) {
    mkdirSync(place, { mode: (stats.mode & 0o777) | 0o700 });
    for (const name of namesIn(from)) await carry(join(from, name), join(to, name));
    return rmdirSync(old);
  }
  if (stats.isSymbolicLink()) symlinkSync(readlinkSync(old), place);
  if (stats.isFile()) {
    using file = openFile({ absolute: from, otherNames: true });
    if (file === undefined) throw new Error(`${from} is gone`);
    await copyFile(`/proc/self/fd/${file.fd}`, place, constants.COPYFILE_EXCL);
  }
  unlinkSync(old);
}

function namesIn(path: string): string[] {
  using directory = openDirectory(path);
  return readdirSync(directory.path);
}

const isBelowNothing = (path: string) => lstatSync(dirname(path), { throwIfNoEntry: false }) === undefined;
