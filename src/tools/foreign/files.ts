import type { MessageInitShape } from "@bufbuild/protobuf";
import type { PreviewSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { ToolFailure } from "../../tool/errors.ts";
import type { Plan } from "../../tool/tool.ts";
import type { PathHandle } from "../../tool/workspace.ts";
import { applyEdit, type Wanted } from "../fs/apply-edit.ts";
import { compare, type FileChange } from "../fs/diff.ts";
import { contentOf, type ExistingFile } from "../fs/existing-file.ts";
import type { Place } from "./mapping.ts";

/** Plans to read a file or directory. */
export async function planRead(filePath: string, at: Place): Promise<Plan> {
  const path = await at.resolve(filePath);
  return {
    title: path.pattern,
    asks: at.asks("read", path),
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
      const after = edits.reduce(
        (file, edit) => ({ isUtf8: true, text: applyEdit(path.absolute, file, edit).text }),
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
  return file && (await contentOf(file));
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
