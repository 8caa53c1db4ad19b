import { isAbsolute } from "node:path";
import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import * as z from "zod";
import type { PreviewSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import type { Ask } from "../../core/ask.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { ForeignPlace } from "../../tool/foreign.ts";
import { openDirectory } from "../../tool/open-file.ts";
import { externalAsks } from "../../tool/path-asks.ts";
import type { Plan, PlanContext, Tool } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { applyEdit, type Wanted } from "../fs/apply-edit.ts";
import { compare, type FileChange } from "../fs/diff.ts";
import { contentOf, type ExistingFile } from "../fs/existing-file.ts";
import { createReadFilter, named } from "../fs/found-files.ts";
import { readGlob } from "../fs/glob-pattern.ts";
import { everySearch, ripgrep, searchTime } from "../fs/ripgrep.ts";
import { createSearchSteps } from "../fs/search-text.ts";
import { commandSearchPath } from "../process/confine-command.ts";
import { readUrl, urlProblem } from "../web/exchange.ts";

/** Plan of an agent's own tool, in terms of the permissions of ours. */
export interface Mapping {
  /** Permissions that it asks. */
  permissions: readonly string[];
  input: z.ZodType;
  readOnly?: boolean;
  /** Part of a long output that is shown. */
  keep?: Partial<Tool["keep"]>;
  plan(input: unknown, at: Place): Promise<Plan> | Plan;
}

/** Makes a mapping; `plan` gets input that fits the schema. */
export function mapping<Input extends z.ZodType>(
  made: Omit<Mapping, "plan"> & { input: Input; plan(input: z.output<Input>, at: Place): Promise<Plan> | Plan },
): Mapping {
  return made as Mapping;
}

/** Context of planning an agent's own tool. */
export interface Place extends PlanContext, ForeignPlace {
  /** Resolves a path of the input against the agent's working directory. */
  resolve(path: string): Promise<PathHandle>;
  /** Asks about a file or directory. */
  asks(permission: string, path: PathHandle, metadata?: JsonObject): Ask[];
  /** Asks about something in a directory, which asks too if it lies outside the workspace. */
  asksIn(directory: PathHandle, ask: Ask): Ask[];
}

const unproven = "may lead elsewhere through a link: the host did not prove that the service sees the same files";

/** Creates the context. Where links cannot be followed, everything about files asks, whatever rules allow. */
export function placeOf(ctx: PlanContext, place: ForeignPlace): Place {
  const { workspace } = ctx;
  const cautious = (ask: Ask): Ask => (place.isDiskShared ? ask : { ...ask, alwaysAsk: unproven });
  return {
    ...ctx,
    ...place,
    async resolve(path) {
      if (path.startsWith("~")) {
        throw new ToolFailure(`${path} begins with ~, which the service cannot resolve for you. Name the whole path.`);
      }
      return await workspace.resolve(isAbsolute(path) ? path : `${place.directory}/${path}`);
    },
    asks: (permission, path, metadata) => path.asks(permission, metadata).map(cautious),
    asksIn: (directory, ask) => [...externalAsks({ ...directory, isDirectory: true }), ask].map(cautious),
  };
}

/** A command line of an agent. */
interface ForeignCommand {
  command: string;
  /** Directory to run in; default: that of the agent. */
  workdir?: string | undefined;
  description?: string | undefined;
  /** Reason to ask although rules allow the command. */
  alwaysAsk?: string | undefined;
}

/** Plans a command line like `bash`: it is analysed command by command, with the files that it touches. */
export async function planCommand(
  { command, workdir, description, alwaysAsk }: ForeignCommand,
  at: Place,
): Promise<Plan> {
  const directory = await at.resolve(workdir ?? ".");
  const about = description === undefined ? {} : { description };
  return {
    title: description || (command.trim().split("\n", 1)[0] ?? command),
    asks: at.asksIn(directory, {
      permission: "bash",
      patterns: [command],
      cwd: directory.absolute,
      metadata: { command, workdir: directory.pattern, ...about },
      ...(alwaysAsk !== undefined && { alwaysAsk }),
    }),
    cwd: directory.absolute,
    // The agent's own search path is not known; programs are looked up as the service would.
    ...(at.isDiskShared && { searchPath: commandSearchPath() }),
    inspect: async () => ({ preview: () => ({ command, paths: [directory.pattern] }) }),
  };
}

/** Plans to read a file, or to list a directory. */
export async function planLook(permission: "read" | "list", named: string, at: Place): Promise<Plan> {
  const path = await at.resolve(named);
  return {
    title: path.pattern,
    asks: at.asks(permission, path),
    inspect: async () => ({ preview: () => ({ paths: [path.pattern] }) }),
  };
}

/** Plans a change of a file; the approval is bound to its content, and shows the difference that the change makes. */
export async function planChange(
  filePath: string,
  change: (before: ExistingFile | undefined, path: PathHandle) => FileChange,
  at: Place,
): Promise<Plan> {
  const path = await at.resolve(filePath);
  return {
    title: path.pattern,
    asks: at.asks("edit", path, { filepath: path.absolute }),
    ...(at.isDiskShared && { binds: [path] }),
    reveals: [path],
    inspect: async () => ({ preview: previewOf(path, change(await present(path), path)) }),
  };
}

/** Makes the difference that replacing pieces of text makes. A piece that is not found exactly once is shown by itself. */
export function editsOf(edits: readonly Wanted[]) {
  return (before: ExistingFile | undefined, path: PathHandle): FileChange => {
    try {
      const steps = createSearchSteps();
      const after = edits.reduce(
        (file, edit) => ({ isUtf8: true, text: applyEdit(path.absolute, file, edit, steps).text }),
        before as Pick<ExistingFile, "text" | "isUtf8"> | undefined,
      );
      return compare(path.pattern, before, after?.text ?? "");
    } catch (cause) {
      // The agent's tool may match text in another way, so that this is not the end of the call.
      if (!(cause instanceof ToolFailure)) throw cause;
      return joined(edits.map(({ oldString, newString }) => compare(path.pattern, { text: oldString }, newString)));
    }
  };
}

/** Makes the difference of a whole new content. */
export function contentChange(content: string) {
  return (before: ExistingFile | undefined, path: PathHandle): FileChange => compare(path.pattern, before, content);
}

async function present(path: PathHandle): Promise<ExistingFile | undefined> {
  using file = path.open();
  if (file?.stats.isDirectory()) throw new ToolFailure(`${path.absolute} is a directory, not a file. Name a file.`);
  return file && (await contentOf(path, file));
}

function joined(changes: readonly FileChange[]): FileChange {
  const sum = (count: (change: FileChange) => number) => changes.reduce((total, change) => total + count(change), 0);
  return {
    diff: changes.map(({ diff }) => diff).join("\n"),
    additions: sum(({ additions }) => additions),
    deletions: sum(({ deletions }) => deletions),
  };
}

function previewOf(path: PathHandle, change: FileChange): () => MessageInitShape<typeof PreviewSchema> {
  return () => ({ ...change, paths: [path.pattern] });
}

/** Plans to find files by name, also in directories that the pattern itself leads to. */
export async function planGlob({ pattern, path = "." }: { pattern: string; path?: string | undefined }, at: Place) {
  const directory = await at.resolve(path);
  const bases = readGlob(pattern).map(({ base }) => (/^[/~]/.test(base) ? base : `${directory.absolute}/${base}`));
  const others = await Promise.all(bases.map(at.resolve));
  const outside = others.filter(({ external }) => external).flatMap((other) => at.asks("list", other));
  return {
    title: pattern,
    asks: [
      ...at.asksIn(directory, { permission: "glob", patterns: [pattern], paths: [directory.absolute] }),
      ...outside,
    ],
    inspect: async () => ({ preview: () => ({ paths: [directory.pattern] }) }),
  } satisfies Plan;
}

/** Files that a search asks about one by one; more of them ask as a whole. */
const maxAsked = 20;

/**
 * Plans to search the content of files. Our `grep` leaves restricted files out; an agent's own search does not, so it asks to
 * read those that lie below the directory.
 */
export async function planGrep(
  { pattern, path = ".", include }: { pattern: string; path?: string | undefined; include?: string | undefined },
  at: Place,
): Promise<Plan> {
  const place = await at.resolve(path);
  const ask = {
    permission: "grep",
    patterns: [pattern],
    paths: [place.absolute],
    metadata: { pattern, path: place.pattern },
  };
  const reads = place.isDirectory ? await restrictedBelow(place, include !== undefined, at) : at.asks("read", place);
  return {
    title: pattern,
    asks: [...at.asksIn(place, ask), ...reads],
    inspect: async () => ({ preview: () => ({ paths: [place.pattern] }) }),
  };
}

/** Asks to read the restricted files below a directory. A filter of names also reaches files that git ignores. */
async function restrictedBelow(directory: PathHandle, withIgnored: boolean, at: Place): Promise<Ask[]> {
  if (!at.isDiskShared) return [];
  using opened = openDirectory(directory.absolute);
  const searched = { ...directory, opened };
  const { mayBeRestricted, mayRead } = createReadFilter(searched, at.judge);
  const names: string[] = [];
  const late = searchTime();
  const listing = [...everySearch, ...(withIgnored ? ["--no-ignore"] : []), "--files", "--null"];
  const search = {
    args: listing,
    cwd: opened.path,
    delimiter: "\0",
    prefilter: mayBeRestricted,
    late,
    signal: late,
  } as const;
  const stopped = await ripgrep(search, (record) => {
    const name = record.replace(/^\.\//, "");
    if (names.length <= maxAsked && !mayRead(name)) names.push(name);
  });
  if (names.length === 0 && stopped === undefined) return [];
  const files = named(names, searched);
  const read = {
    permission: "read",
    patterns: files.map(({ shown }) => shown),
    paths: files.map(({ absolute }) => absolute),
  };
  if (stopped === undefined && names.length <= maxAsked) return [read];
  return [{ ...read, alwaysAsk: "is one of many restricted files that the search may read" }];
}

/** Plans to fetch a page. Redirects are followed by the agent, so rules see the first address only. */
export function planFetch(text: string): Plan {
  const problem = urlProblem(text);
  if (problem !== undefined) throw new ToolFailure(`url ${problem}`);
  const url = readUrl(text);
  return {
    title: url.href,
    asks: [{ permission: "webfetch", patterns: [url.href], metadata: { url: url.href } }],
    inspect: async () => ({ preview: () => ({ hosts: [url.host] }) }),
  };
}

/** An input whose fields are texts. */
type Texts = z.ZodType<Record<string, string>>;

/** Maps a tool that reads the file of a field. */
export const readOf = (field: string) =>
  mapping({
    permissions: ["read"],
    input: z.object({ [field]: z.string().min(1) }) as Texts,
    readOnly: true,
    plan: ({ [field]: path = "" }, at) => planLook("read", path, at),
  });

/** Maps a tool that writes a whole file, whose path is in a field. */
export const writeOf = (field: string) =>
  mapping({
    permissions: ["edit"],
    input: z.object({ [field]: z.string().min(1), content: z.string() }) as Texts,
    plan: ({ [field]: path = "", content = "" }, at) => planChange(path, contentChange(content), at),
  });

/** Maps a tool that is judged by the text of one field. */
export const namedBy = (permission: string, field: string, text = z.string()) =>
  mapping({
    permissions: [permission],
    input: z.object({ [field]: text }) as Texts,
    plan: ({ [field]: pattern = "" }) => planNamed(permission, pattern),
  });

/** Plans something that is judged by one word, such as the name of a skill or of a subagent. */
export function planNamed(permission: string, pattern: string, title = pattern): Plan {
  return { title, asks: [{ permission, patterns: [pattern], metadata: { title } }] };
}
