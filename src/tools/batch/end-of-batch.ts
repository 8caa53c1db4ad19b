import type { JsonObject } from "@bufbuild/protobuf";
import { ToolFailure } from "../../tool/errors.ts";
import type { ChildResult } from "../../tool/tool.ts";
import type { BeforeImages, Restored } from "./before-images.ts";

/** Tools whose changes of files an atomic batch restores. */
const restorable: ReadonlySet<string> = new Set(["apply_patch", "edit", "multiedit", "write"]);
/** Tools without effects. */
const effectless: ReadonlySet<string> = new Set(["echo", "glob", "grep", "invalid", "list", "read", "todoread"]);

/** Tools that only ask others: what they did needs no restoring to try again. */
const asking: ReadonlySet<string> = new Set([
  ...["background_output", "codesearch", "question", "skill", "webfetch", "websearch"],
]);

/** True if a tool may change something here. */
export const mayChange = (tool: string): boolean => !effectless.has(tool) && !asking.has(tool) && !readsCode.test(tool);
const readsCode = /^lsp(?!_rename$|_code_action_resolve$)/;

/** True if nothing takes the effects of a tool back. */
export const isFinal = (tool: string): boolean => !restorable.has(tool) && !effectless.has(tool);

/** A call of the batch with its tool. */
export type BatchResult = ChildResult & { tool: string };

/** True if a call ended with an error, or its command failed. */
export const hasFailed = ({ status, commandFailure }: ChildResult): boolean =>
  status === "error" || commandFailure !== undefined;

/**
 * The end of an atomic batch, the only place that restores files. If a call failed, restores the files that the others changed
 * and throws the error of the batch, which names what ran.
 */
export async function endAtomicBatch(
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
