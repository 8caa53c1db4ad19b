import { lstat } from "node:fs/promises";
import { ToolFailure } from "../../tool/errors.ts";
import type { FileChanges } from "../fs/change-file.ts";
import { type AsideFile, setAside } from "../fs/replace-file.ts";
import type { PatchStep } from "./verify-patch.ts";

/** Writes all new content, then removes files. If a step fails, undoes the earlier ones in reverse order. */
export async function carryOut(steps: readonly PatchStep[], changes: Pick<FileChanges, "replace">): Promise<void> {
  const undo: (() => Promise<void>)[] = [];
  const aside: AsideFile[] = [];
  try {
    for (const step of steps) {
      if (step.content === undefined) continue;
      await put(step, changes);
      undo.push(() => undoPut(step, changes));
    }
    for (const { target, before, content } of steps) {
      if (before === undefined || (content !== undefined && target.to === undefined)) continue;
      const file = await setAside(target.path, before.stats);
      aside.push(file);
      undo.push(file.putBack);
    }
  } catch (cause) {
    const failures = await undoAll(undo);
    if (failures.length === 0) throw cause;
    const what = cause instanceof Error ? cause.message : String(cause);
    throw new ToolFailure(`${what}\nSome earlier changes could not be undone: ${failures.join("; ")}`, { cause });
  }
  for (const file of aside) await file.remove();
}

async function put(
  { place, target, before, content = Buffer.of() }: PatchStep,
  { replace }: Pick<FileChanges, "replace">,
): Promise<void> {
  const replaced = target.to === undefined ? before?.stats : undefined;
  await replace(place, replaced, content, before && { like: before.stats });
}

async function undoPut({ place, target, before }: PatchStep, { replace }: Pick<FileChanges, "replace">): Promise<void> {
  const now = await lstat(place.absolute, { bigint: true });
  if (before === undefined || target.to !== undefined) return await (await setAside(place, now)).remove();
  // A replaced file is always text.
  await replace(place, now, Buffer.from(before.mark + (before.text ?? "")));
}

/** Undoes the steps; returns the errors of those that failed. */
async function undoAll(undo: readonly (() => Promise<void>)[]): Promise<string[]> {
  const failures: string[] = [];
  for (const step of undo.toReversed()) {
    await step().catch((error: unknown) => failures.push(error instanceof Error ? error.message : String(error)));
  }
  return failures;
}
