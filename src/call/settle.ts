import { create, type JsonObject } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { DecisionRecord } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { type FilePart, FilePartSchema, ToolExecutor, type ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { AnswerEffects } from "../approval/ports.ts";
import { canonicalJson } from "../core/json.ts";
import { RequestError } from "../core/request-error.ts";
import { difference } from "../policy/display.ts";
import { HookFailure, InvalidInput, ToolFailure } from "../tool/errors.ts";
import type { ForeignTools } from "../tool/foreign.ts";
import type { Registry } from "../tool/registry.ts";
import type { Attachment, Plan, Tool, ToolResult } from "../tool/tool.ts";
import type { Returned } from "./body.ts";
import { runAfterHooks } from "./call-hooks.ts";
import { deniedRecord, whileStoreAway } from "./call-record.ts";
import { checkLevels, checkSize } from "./check-size.ts";
import { noteOfChildSession } from "./child-sessions.ts";
import { CallEnd, type CallFailure, CallGone, callFailure, endCall } from "./ends.ts";
import type { Engine } from "./engine.ts";
import type { Bounded, CallOutput } from "./output.ts";
import { type Running, recordWithEnd, runKeyOf } from "./running.ts";
import { completed, edited, failed, inputOf, isTerminal } from "./state.ts";
import { storeError, storeOutput, storeStructured } from "./stored-outputs.ts";

/** Steps 10 and 11: bounds what the model sees, runs the after hooks and writes the completed part. */
export async function settleCall(
  engine: Engine,
  call: Running,
  plan: Plan,
  { result, output }: Returned,
): Promise<ToolPart | undefined> {
  const { text, ...sizes } = await boundOutput(result, output);
  const structured = await whileStoreAway(engine, call, () => storeStructured(engine, call, result.structured));
  const metadata: JsonObject = {
    ...call.progress?.shown.metadata,
    ...result.metadata,
    ...sizes,
    ...structured.metadata,
    truncated: sizes.truncated || result.metadata?.truncated === true,
  };
  const attachments = await fileParts(result.attachments ?? [], (bytes) =>
    whileStoreAway(engine, call, () => storeOutput(engine, call, bytes)),
  );
  const shown = await runAfterHooks(call.hooks, call.record.part, "completed", {
    title: result.title ?? call.progress?.shown.title ?? plan.title,
    output: [text, result.note, noteOfEdit(call.record.part)].filter(Boolean).join("\n\n"),
    metadata,
  });
  const part = completed(
    call.record.part,
    {
      ...shown,
      attachments,
      ...(structured.value && { structuredOutput: structured.value }),
    },
    engine.store.now(),
  );
  return await writeEnd(engine, call, part);
}

/** Step 10, bound: returns what the model sees of the returned text, or of what the body wrote if it returned none. */
export async function boundOutput({ output: text }: ToolResult, output: CallOutput): Promise<Bounded> {
  return text === undefined ? output.written() : await output.whole(text);
}

/**
 * Ends a call without a result: expected failure, refusal, abort or defect. Writes nothing for a call that is no longer ours.
 * Returns the part as stored. `reported` is the metadata of a call that did not run here.
 */
export async function failCall(
  engine: Engine,
  call: Running,
  thrown: unknown,
  reported?: JsonObject,
): Promise<ToolPart | undefined> {
  const cause = call.signal.aborted ? call.signal.reason : thrown;
  if (cause instanceof CallGone || isTerminal(call.record.part)) return undefined;
  try {
    // Output written so far is stored and named, unless storing it is what failed.
    await call.output?.end().catch(() => undefined);
    const written = call.output?.written();
    const { text: _, ...sizes } = written ?? { text: "" };
    const metadata = call.progress || written ? { ...call.progress?.shown.metadata, ...sizes } : reported;
    const failure = await failureAfterHooks(engine, call, cause, metadata);
    const notes = [noteOfEdit(call.record.part), await noteOfChildSession(engine, call.record.part)];
    const text = [failure.error, ...notes].filter(Boolean).join("\n\n");
    const error = await storeError(engine, call, text);
    const part = failed(call.record.part, { ...failure, error }, engine.store.now());
    const decisions = cause instanceof CallEnd && cause.by ? [deniedRecord(call.record, cause.by)] : [];
    return await writeEnd(engine, call, part, decisions);
  } catch (error) {
    if (error instanceof CallGone) return undefined;
    // The lease lapses and recovery ends the call.
    engine.log.error("the end of a call could not be recorded", { error, callId: call.record.ref.callId });
    return undefined;
  }
}

/** Builds the failure to report; if the body ran, after hooks may rewrite it. */
async function failureAfterHooks(
  { log }: Engine,
  call: Running,
  cause: unknown,
  metadata: JsonObject | undefined,
): Promise<CallFailure> {
  const failure = { ...callFailure(cause, call, log), ...(metadata && { metadata }) };
  // An after hook that failed is not run again.
  if (call.record.part.state.case !== "running" || cause instanceof HookFailure) return failure;
  const title = call.progress?.shown.title ?? "";
  try {
    const shown = { title, output: failure.error, metadata: metadata ?? {} };
    const rewritten = await runAfterHooks(call.hooks, call.record.part, "error", shown);
    return { ...failure, error: rewritten.output, ...(metadata && { metadata: rewritten.metadata }) };
  } catch (error) {
    if (!(error instanceof HookFailure)) throw error;
    return { ...failure, error: `${failure.error}\n${error.message}` };
  }
}

/**
 * Step 11, settle: one atomic step writes the terminal part, its event and the end of the lease. Undefined if fenced off. A store that
 * is away for a moment loses no result: the step is taken again while the lease is valid.
 */
async function writeEnd(
  engine: Engine,
  call: Running,
  part: ToolPart,
  decisions: readonly DecisionRecord[] = [],
): Promise<ToolPart | undefined> {
  if (await recordWithEnd(call, { part, decisions })) return call.record.part;
  const step = { ref: call.record.ref, guard: { fence: call.fence }, part };
  const withDecisions = { ...step, decisions: [...decisions, ...(call.reports ?? [])] };
  const key = runKeyOf(call.record.ref);
  engine.unstored.add(key);
  const written = await whileStoreAway(engine, call, () => endCall(engine, withDecisions));
  engine.unstored.delete(key);
  if (written) call.record = { ...call.record, part: written };
  return written;
}

/** Inline size of one file and of all files of a part, whose event holds at most 1 MiB. */
const maxInlineBytes = 64 * 1024;
const maxInlineTotalBytes = 256 * 1024;
const maxFileBytes = 5 * 1024 * 1024;

/**
 * Turns the files that a tool returned into parts. Small files are inline while they fit; `store` stores the others and
 * returns their URL. Files that another call has stored are passed on. Throws `ToolFailure` for a file over 5 MiB.
 */
export async function fileParts(
  files: readonly (Attachment | FilePart)[],
  store: (data: Uint8Array) => Promise<string>,
): Promise<FilePart[]> {
  const parts: FilePart[] = [];
  let inline = 0;
  for (const file of files) {
    if ("url" in file && !file.url.startsWith("data:")) {
      parts.push(file);
      continue;
    }
    const { mime, filename, data } = "url" in file ? inlineFile(file) : file;
    if (data.length > maxFileBytes) {
      throw new ToolFailure(
        `The file ${filename ?? mime} that the tool returned has ${data.length} bytes; at most 5 MiB can be attached. Make it smaller.`,
      );
    }
    const isInline = data.length <= maxInlineBytes && inline + data.length <= maxInlineTotalBytes;
    if (isInline) inline += data.length;
    const url = isInline ? `data:${mime};base64,${Buffer.from(data).toString("base64")}` : await store(data);
    const named = filename !== undefined && { filename };
    parts.push(create(FilePartSchema, { type: "file", mime, size: BigInt(data.length), ...named, url }));
  }
  return parts;
}

/** Returns the file of a part that holds it inline. */
function inlineFile({ mime, filename, url }: FilePart): Attachment {
  const data = Buffer.from(url.slice(url.indexOf(",") + 1), "base64");
  return { mime, ...(filename !== undefined && { filename }), data };
}

/** Creates the function that applies an approver's edit to a call: only input that the call's tool accepts replaces its input. */
export function createInputEdit({
  registry,
  foreign,
  inputBytes,
}: {
  registry: Registry;
  foreign: ForeignTools;
  inputBytes: number;
}): AnswerEffects["replaceInput"] {
  return ({ part, workspace }, input, by) => {
    const before = inputOf(part);
    if (canonicalJson(before) === canonicalJson(input)) return "no difference";
    checkLevels("input", input);
    checkSize("input", input, Math.min(inputBytes, maxEditedBytes));
    if (!part.originalInput) checkSize("the original input", before, maxEditedBytes);
    const isDelegated = part.executor === ToolExecutor.DELEGATED;
    decode(isDelegated ? foreign.tool(part.tool) : registry.get(part.tool, workspace), part.tool, input);
    return { part: edited(part, input, by), difference: difference(before, input) };
  };
}

/** Size of each input of an edit: its event holds both. */
const maxEditedBytes = 480 * 1024;

/** Returns the note about edited input for the model; undefined if the input was not edited. */
function noteOfEdit(part: ToolPart): string | undefined {
  if (!part.originalInput) return undefined;
  return `The user changed the arguments of this call before it ran: ${difference(part.originalInput, inputOf(part))}`;
}

function decode(tool: Tool | undefined, name: string, input: JsonObject): void {
  if (!tool) {
    throw new RequestError(
      ErrorReason.UNKNOWN_TOOL,
      `the tool "${name}" of this call is no longer registered; reject it`,
      {
        tool: name,
      },
    );
  }
  try {
    tool.decode(input);
  } catch (cause) {
    if (!(cause instanceof InvalidInput)) throw cause;
    throw new RequestError(ErrorReason.INVALID_INPUT, cause.message, { tool: name }, { cause });
  }
}
