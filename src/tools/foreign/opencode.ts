import * as z from "zod";
import { ToolFailure } from "../../tool/errors.ts";
import { PatchSyntaxError, parsePatch } from "../apply-patch/parse-patch.ts";
import {
  editsOf,
  type Mapping,
  mapping,
  namedBy,
  type Place,
  planChange,
  planCommand,
  planFetch,
  planGlob,
  planGrep,
  planLook,
  planNamed,
  readOf,
  writeOf,
} from "./mapping.ts";

const path = z.string().min(1);
const edit = z.object({ oldString: z.string(), newString: z.string(), replaceAll: z.boolean().default(false) });

const patch = mapping({
  permissions: ["edit"],
  input: z.object({ patchText: z.string().min(1) }),
  plan: ({ patchText }, at) => planPatch(patchText, at),
});
const todo = mapping({
  permissions: ["todowrite"],
  input: z.looseObject({}),
  plan: () => planNamed("todowrite", "*", "todos"),
});

/** Tools of opencode, by their own names. */
export const opencodeTools = {
  bash: mapping({
    permissions: ["bash"],
    input: z.object({ command: z.string().min(1), workdir: path.optional(), description: z.string().optional() }),
    keep: { end: "tail" },
    plan: planCommand,
  }),
  read: readOf("filePath"),
  edit: mapping({
    permissions: ["edit"],
    input: edit.extend({ filePath: path }),
    plan: ({ filePath, ...input }, at) => planChange(filePath, editsOf([input]), at),
  }),
  multiedit: mapping({
    permissions: ["edit"],
    input: z.object({ filePath: path, edits: z.array(edit).min(1) }),
    plan: ({ filePath, edits }, at) => planChange(filePath, editsOf(edits), at),
  }),
  write: writeOf("filePath"),
  patch,
  apply_patch: patch,
  glob: mapping({
    permissions: ["glob"],
    input: z.object({ pattern: path, path: path.optional() }),
    readOnly: true,
    plan: planGlob,
  }),
  grep: mapping({
    permissions: ["grep"],
    input: z.object({ pattern: path, path: path.optional(), include: path.optional() }),
    readOnly: true,
    plan: planGrep,
  }),
  list: mapping({
    permissions: ["list"],
    input: z.object({ path: path.optional() }),
    readOnly: true,
    plan: ({ path: directory = "." }, at) => planLook("list", directory, at),
  }),
  webfetch: mapping({
    permissions: ["webfetch"],
    input: z.object({ url: z.string() }),
    plan: ({ url }) => planFetch(url),
  }),
  websearch: namedBy("websearch", "query"),
  codesearch: namedBy("codesearch", "query"),
  task: mapping({
    permissions: ["task"],
    input: z.object({ subagent_type: z.string(), description: z.string().optional() }),
    plan: ({ subagent_type: agent, description }) => planNamed("task", agent, description ?? agent),
  }),
  skill: namedBy("skill", "name"),
  todowrite: todo,
  todoread: todo,
} satisfies Readonly<Record<string, Mapping>>;

/** Plans a patch of several files: it asks to edit each of them, and shows the patch itself. */
async function planPatch(patchText: string, at: Place) {
  const files = filesOf(patchText);
  const paths = await Promise.all(files.map(at.resolve));
  return {
    title: paths.map(({ pattern }) => pattern).join(", "),
    asks: paths.flatMap((file) => at.asks("edit", file, { filepath: file.absolute })),
    ...(at.isDiskShared && { binds: paths }),
    inspect: async () => ({ preview: () => ({ diff: patchText, paths: paths.map(({ pattern }) => pattern) }) }),
  };
}

function filesOf(patchText: string): string[] {
  try {
    return parsePatch(patchText).flatMap((file) =>
      file.kind === "update" && file.moveTo !== undefined ? [file.path, file.moveTo] : [file.path],
    );
  } catch (cause) {
    if (cause instanceof PatchSyntaxError) throw new ToolFailure(cause.message, { cause });
    throw cause;
  }
}
