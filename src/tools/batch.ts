import type { JsonObject } from "@bufbuild/protobuf";
import * as z from "zod";
import type { StartedCall } from "../core/durability.ts";
import { RequestError } from "../core/request-error.ts";
import { defineTool } from "../tool/define-tool.ts";
import { ChangedAfterApproval, ToolFailure } from "../tool/errors.ts";
import { bytesOf, type OpenFile, openFile, readBounded } from "../tool/open-file.ts";
import type { ChangeObserver, ChildResult, DefinedTool, FileWrite, ToolContext } from "../tool/tool.ts";
import type { FileChanges } from "./fs/change-file.ts";
import { setAside } from "./fs/replace-file.ts";

const maxCalls = 25;

/** Accepts the field name of a later form of opencode, which some models write. */
const alsoNamed = (name: string, later: string) => (value: unknown) =>
  typeof value === "object" && value !== null && later in value && !(name in value)
    ? { ...value, [name]: Reflect.get(value, later) }
    : value;

const toolCall = z.preprocess(
  alsoNamed("args", "parameters"),
  z.object({
    tool: z
      .string()
      .min(1)
      .refine((tool) => tool !== "batch", "a batch cannot hold another batch; put its calls into this one")
      .describe("The tool to call"),
    args: z.record(z.string(), z.json()).default({}).describe("Its input"),
  }),
);

const input = z.preprocess(
  alsoNamed("tools", "tool_calls"),
  z
    .object({
      tools: z
        .array(toolCall)
        .min(1)
        .max(maxCalls, `at most ${maxCalls} calls; make a second batch for the others`)
        .describe("The calls to make"),
      atomic: z
        .boolean()
        .optional()
        .describe(
          "Start all or none; if one fails, restore the files that write, edit, multiedit and apply_patch changed. Default: true if one of the calls may change something",
        ),
    })
    .transform((batch) => ({ ...batch, atomic: batch.atomic ?? batch.tools.some(({ tool }) => mayChange(tool)) })),
);

/** Makes several calls at the same time; each is a separate call, with separate asks and a separate result. */
export function createBatch({ changes }: { changes: Pick<FileChanges, "inTurns" | "replace"> }): DefinedTool {
  return defineTool({
    name: "batch",
    version: "2",
    description: [
      `Make up to ${maxCalls} tool calls at the same time instead of one after another. Each is judged and asked for on its own.`,
      "Calls that only read end each for itself. A batch with a call that may change something is atomic, unless you set atomic to",
      "false: none starts before all are allowed, and if one may not run none does. If one of them fails, or its command exits with",
      "another code than 0, the batch is an error, and files that write, edit, multiedit and apply_patch changed are restored.",
      "Nothing else is: what bash, webfetch and other tools did stays done.",
    ].join(" "),
    input,
    permissions: ["batch"],
    openWorld: true,
    destructive: true,
    durable: { lossNote: unrestoredNote },
    plan: ({ tools, atomic }) => {
      const names = [...new Set(tools.map(({ tool }) => tool))];
      const final = atomic ? names.filter(isFinal) : [];
      const count = `${tools.length} ${tools.length === 1 ? "call" : "calls"}`;
      return {
        title: [count, ...(atomic ? ["atomic"] : []), ...(final.length > 0 ? [finalWords(final)] : [])].join(", "),
        asks: [
          {
            permission: "batch",
            patterns: names,
            ...(atomic && { metadata: { atomic, cannotBeTakenBack: final } }),
          },
        ],
      };
    },
    async execute({ tools, atomic }, ctx) {
      // The JSON type of zod equals that of protobuf.
      const children = tools.map(({ tool, args }) => ({ tool, input: args as JsonObject }));
      const images = createBeforeImages(ctx, changes);
      const ended = await ctx.calls(children, { atomic, ...(atomic && { changes: images }) });
      const results = ended.map((result, index) => ({ ...result, tool: tools[index]?.tool ?? "" }));
      const failed = results.filter(hasFailed).length;
      const metadata = { calls: results.map(describe), failed };
      const sections = results.map(section);
      if (atomic) {
        const show = (end: JsonObject) => ctx.metadata({ metadata: { ...metadata, ...end } });
        await endAtomicBatch(results, images, { show, sections });
      }
      const summary =
        failed === 0
          ? `All ${results.length} tools executed successfully.`
          : `Executed ${results.length - failed}/${results.length} tools successfully. ${failed} failed.`;
      return {
        output: [summary, ...sections].join("\n\n"),
        metadata,
        attachments: results.flatMap(({ attachments }) => attachments),
      };
    },
  });
}

const finalWords = (tools: readonly string[]) => `${tools.join(" and ")} cannot be taken back`;

function describe({ callId, tool, status, title, commandFailure }: BatchResult): JsonObject {
  return { callId, tool, status, title, ...(commandFailure !== undefined && { commandFailure }) };
}

function section({ callId, tool, status, text, attachments }: BatchResult): string {
  const files = attachments.map(({ filename, mime }) => `(attached: ${filename ?? mime})`);
  const lines = [text, ...files].join("\n");
  return `<call id=${JSON.stringify(callId)} tool=${JSON.stringify(tool)} status="${status}">\n${lines}\n</call>`;
}

/** Tools whose changes of files an atomic batch restores. */
const restorable: ReadonlySet<string> = new Set(["apply_patch", "edit", "multiedit", "write"]);
/** Tools without effects. */
const effectless: ReadonlySet<string> = new Set(["echo", "glob", "grep", "invalid", "list", "read", "todoread"]);

/** Tools that only ask others: what they did needs no restoring to try again. */
const asking: ReadonlySet<string> = new Set([
  ...["background_output", "codesearch", "question", "skill", "webfetch", "websearch"],
]);

/** True if a tool may change something here. */
const mayChange = (tool: string): boolean => !effectless.has(tool) && !asking.has(tool) && !readsCode.test(tool);
const readsCode = /^lsp(?!_rename$|_code_action_resolve$)/;

/** True if nothing takes the effects of a tool back. */
const isFinal = (tool: string): boolean => !restorable.has(tool) && !effectless.has(tool);

/** A call of the batch with its tool. */
type BatchResult = ChildResult & { tool: string };

/** True if a call ended with an error, or its command failed. */
const hasFailed = ({ status, commandFailure }: ChildResult): boolean =>
  status === "error" || commandFailure !== undefined;

/**
 * The end of an atomic batch, the only place that restores files. If a call failed, restores the files that the others changed
 * and throws the error of the batch, which names what ran.
 */
async function endAtomicBatch(
  results: readonly BatchResult[],
  images: BeforeImages,
  { show, sections }: { show(metadata: JsonObject): void; sections: readonly string[] },
): Promise<void> {
  try {
    if (!results.some(hasFailed)) return;
    const outcome = images.hasStarted ? await images.restore() : { restored: [], left: [] };
    const final = results.filter(({ tool, mayHaveEffects }) => mayHaveEffects === true && isFinal(tool));
    show({
      restored: outcome.restored,
      notRestored: outcome.left.map(({ file, why }) => ({ file, why })),
      cannotBeTakenBack: final.map(({ callId, tool }) => ({ callId, tool })),
    });
    const hadNoEffects = outcome.left.length === 0 && final.length === 0;
    throw new ToolFailure([summary(results, outcome, final, images), ...sections].join("\n\n"), { hadNoEffects });
  } finally {
    // What stays behind is removed with other old outputs.
    await images.drop().catch(() => {});
  }
}

function summary(
  results: readonly BatchResult[],
  { restored, left }: Restored,
  final: readonly BatchResult[],
  images: BeforeImages,
): string {
  const failed = results.filter(hasFailed).map((each) => `${nameOf(each)}${why(each)}`);
  if (!images.hasStarted) return `The atomic batch failed and nothing was run: ${failed.join("; ")}.`;
  const ran = results.filter(({ mayHaveEffects }) => mayHaveEffects === true).map(nameOf);
  return [
    `The atomic batch failed: ${failed.join("; ")}.`,
    `Ran: ${ran.length === 0 ? "none" : ran.join(", ")}.`,
    restored.length === 0 ? "No file was restored." : `Restored as before the batch: ${restored.join(", ")}.`,
    ...left.map(({ file, why }) => `Not restored: ${file} (${why}). Check it.`),
    ...(final.length === 0 ? [] : [`Cannot be taken back: ${final.map(nameOf).join(", ")}. Check what they did.`]),
  ].join("\n");
}

const nameOf = ({ callId, tool }: BatchResult) => `${callId} (${tool})`;
const why = ({ commandFailure }: ChildResult) => (commandFailure === undefined ? "" : ` ended with ${commandFailure}`);

const maxImageBytes = 64 * 1024 * 1024;

/** Outcome of restoring the files of a batch. */
interface Restored {
  /** Files that are as before the batch again. */
  restored: string[];
  /** Files that were left as they are, with the reason. */
  left: { file: string; why: string }[];
}

/** State of a file before the batch; `before` is null if there was no file. */
const beforeImage = z.object({
  file: z.string(),
  before: z
    .object({
      sha256: z.string(),
      output: z.string(),
      size: z.number(),
      mode: z.number(),
      uid: z.number(),
      gid: z.number(),
    })
    .nullable(),
});
type BeforeImage = z.infer<typeof beforeImage>;

/** State that the batch stores before its calls start, and before each write: the images, and what its calls write (null: they remove the file). */
const storedImages = z.object({
  images: z.array(beforeImage),
  writes: z.array(z.object({ file: z.string(), sha256: z.string().nullable() })),
});

/**
 * The files that an atomic batch changes: stores them before the batch starts, observes what its calls write, and can restore
 * them, also after a restart of the service.
 */
interface BeforeImages extends ChangeObserver {
  /** True once the images are stored and the calls may have started. */
  readonly hasStarted: boolean;
  /** Restores each file that still holds what the batch wrote. */
  restore(): Promise<Restored>;
  /** Removes the stored images. */
  drop(): Promise<void>;
}

/** Creates the before-images of one batch, with those that a former run of it stored. */
function createBeforeImages(
  { durable, outputs, reads }: Pick<ToolContext, "durable" | "outputs" | "reads">,
  changes: Pick<FileChanges, "inTurns" | "replace">,
): BeforeImages {
  const stored = storedImages.safeParse(durable.memo).data;
  let images = stored?.images ?? [];
  let writes = stored?.writes ?? [];
  let hasStarted = stored !== undefined;
  /** Writes of calls that run at the same time are stored one after the other. */
  let storing = Promise.resolve();

  async function take(file: string): Promise<BeforeImage> {
    using opened = openChanged(file);
    if (opened === undefined) return { file, before: null };
    const { sha256, content } = await contentOf(opened);
    const output = await outputs.store(content);
    const { size, mode, uid, gid } = opened.stats;
    const owner = { mode: Number(mode), uid: Number(uid), gid: Number(gid) };
    return { file, before: { sha256, output, size: Number(size), ...owner } };
  }

  async function restoreOne({ file, before }: BeforeImage): Promise<"same" | "restored"> {
    using now = openChanged(file);
    const present = now && (await contentOf(now)).sha256;
    const written = writes.filter((write) => write.file === file);
    // A former run of a batch that is resumed may have restored it.
    if (present === before?.sha256) return durable.isResumed && written.length > 0 ? "restored" : "same";
    if (!written.some(({ sha256 }) => sha256 === (present ?? null)))
      throw new ToolFailure("it does not hold what the batch wrote");
    if (before) {
      const like = { mode: BigInt(before.mode), uid: BigInt(before.uid), gid: BigInt(before.gid) };
      await changes.replace({ absolute: file }, now?.stats, await storedContent(before), { like });
      await reads.record(file, before.sha256);
    } else if (now) await (await setAside({ absolute: file }, now.stats)).remove();
    return "restored";
  }

  async function storedContent({ output, size }: { output: string; size: number }): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    for (let at = 0; at < size; ) {
      const piece = await outputs.read(output, at, 1024 * 1024);
      if (piece === undefined || piece.data.length === 0) throw new ToolFailure("its content before the batch is lost");
      // The store may use the memory of a piece again.
      chunks.push(Uint8Array.from(piece.data));
      at += piece.data.length;
    }
    return Buffer.concat(chunks);
  }

  return {
    get hasStarted() {
      return hasStarted;
    },
    async beforeStart(files) {
      checkSize(files);
      await dropImages();
      [images, writes] = [[], []];
      for (const file of files) images.push(await take(file).catch((cause: unknown) => cannotStore(file, cause)));
      // Stored also without files: from now on the calls may start.
      await durable.store({ images, writes }).catch(cannotStoreImages);
      hasStarted = true;
    },
    async beforeWrite(added) {
      const isKnown = ({ path, sha256 }: FileWrite) =>
        writes.some((write) => write.file === path && write.sha256 === (sha256 ?? null));
      const unknown = added.filter((write) => !isKnown(write));
      writes = [...writes, ...unknown.map(({ path: file, sha256 = null }) => ({ file, sha256 }))];
      if (unknown.length > 0) storing = storing.catch(() => {}).then(() => durable.store({ images, writes }));
      await storing;
    },
    async restore() {
      const outcome: Restored = { restored: [], left: [] };
      for (const image of images) {
        const { file } = image;
        try {
          const result = await changes.inTurns([file], () => restoreOne(image));
          if (result === "restored") outcome.restored.push(file);
        } catch (error) {
          outcome.left.push({ file, why: error instanceof Error ? error.message : String(error) });
        }
      }
      return outcome;
    },
    drop: dropImages,
  };

  async function dropImages(): Promise<void> {
    // Another run of the batch may still need them.
    if (await durable.isLeft()) return;
    for (const { before } of images) if (before) await outputs.remove(before.output);
  }
}

/** Returns the files that a batch may have changed and that nobody has restored, for the error of one that is lost. */
function unrestoredNote({ memo }: Pick<StartedCall, "memo">): string {
  const { writes = [] } = storedImages.safeParse(memo).data ?? {};
  const files = [...new Set(writes.map(({ file }) => file))];
  return files.length === 0 ? "" : `It is atomic, but no file was restored: check ${files.join(", ")}.`;
}

/** Refuses a batch whose files are too large to be stored. */
function checkSize(files: readonly string[]): void {
  const sizes = files.map((file) => {
    using opened = openChanged(file);
    return Number(opened?.stats.size ?? 0);
  });
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  if (bytes <= maxImageBytes) return;
  throw new ToolFailure(
    `The files that this atomic batch changes have ${bytes} bytes; at most ${maxImageBytes} can be restored if a call fails. Nothing was run: leave out atomic, or make smaller batches.`,
  );
}

function cannotStore(file: string, cause: unknown): never {
  if (cause instanceof ToolFailure || cause instanceof ChangedAfterApproval) throw cause;
  throw new ToolFailure(
    `${file} could not be stored before the batch, so nothing was run: ${String(cause)}. Try again.`,
    {
      cause,
    },
  );
}

function cannotStoreImages(cause: unknown): never {
  if (!(cause instanceof RequestError)) throw cause;
  throw new ToolFailure(
    `The files could not be stored before the batch, so nothing was run: ${cause.message}. Try again.`,
    {
      cause,
    },
  );
}

/** Reads a file that an atomic batch changes. */
const contentOf = (file: OpenFile) =>
  readBounded(bytesOf(file), {
    maxBytes: maxImageBytes,
    tooLarge: "it is larger than what the batch stores and writes",
  });

/** Opens a file of the batch; undefined if there is none. Refuses directories, and files with other names. */
function openChanged(absolute: string): OpenFile | undefined {
  const file = openFile({ absolute, otherNames: false });
  if (!file?.stats.isDirectory()) return file;
  file[Symbol.dispose]();
  throw new ToolFailure(`${absolute} is a directory, not a file. Name a file.`);
}
