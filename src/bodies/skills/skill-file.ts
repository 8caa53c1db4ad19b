import { createHash } from "node:crypto";
import * as z from "zod";
import { visible } from "../../core/visible.ts";

/** A parsed SKILL.md. */
export interface SkillFile {
  name: string;
  description: string;
  /** Everything after the front matter. */
  text: string;
  /** SHA-256 (hex) of the whole file. */
  sha256: string;
}

/** A file or directory that is no usable skill; the message says what to do. */
export class SkillProblem extends Error {
  override name = "SkillProblem";
  /** From 1; 0 if unknown. */
  readonly line: number;
  constructor(message: string, line = 0) {
    super(message);
    this.line = line;
  }
}

/** Maximum size of a SKILL.md: all of it goes to the model. */
export const maxSkillBytes = 65_536;
const maxHeadLength = 4_096;
const maxQuotedLength = 200;
const maxNameLength = 64;
const maxDescriptionLength = 1_024;

/** Characters that have no place in a description: controls, changes of direction, private and unassigned ones, tags. */
const hostileCharacters = /(?![\t\n])[\p{Cc}\p{Bidi_Control}\p{Co}\p{Cn}\p{Cs}\u{E0000}-\u{E007F}]/u;

const head = z.object({
  name: z
    .string({ error: "must be text; put it in quotes" })
    .regex(
      /^[a-z0-9]+(-[a-z0-9]+)*$/,
      "must have lower-case letters, digits and single hyphens, such as git-release; rename it and its directory",
    )
    .max(maxNameLength, `is longer than ${maxNameLength} characters; shorten it and its directory's name`),
  description: z
    .string({ error: "must be text that says when to use the skill; put it in quotes" })
    .trim()
    .min(1, "is empty; say when to use the skill")
    .max(maxDescriptionLength, `is longer than ${maxDescriptionLength} characters; shorten it`)
    .refine(
      (text) => !hostileCharacters.test(text),
      "has control characters or others that do not show; remove them, and check where the file comes from",
    ),
});

/** Parses a SKILL.md in a directory of this name; throws `SkillProblem`. */
export async function parseSkill(bytes: Buffer, directory: string): Promise<SkillFile> {
  const lines = decode(bytes).replaceAll("\r\n", "\n").split("\n");
  const isMark = (line: string) => line.trimEnd() === "---";
  const end = lines.findIndex((line, i) => i > 0 && isMark(line));
  if (!isMark(lines[0] ?? "") || end === -1) {
    throw new SkillProblem(
      "has no front matter; begin it with a line ---, then name: and description:, then a line ---",
      1,
    );
  }
  const { name, description } = checkHead(await readHead(lines.slice(1, end).join("\n")), lines);
  if (name !== directory) {
    throw new SkillProblem(
      `has the name ${name}, but its directory is named ${JSON.stringify(directory)}; make both equal`,
      lineOf(lines, "name"),
    );
  }
  const text = lines.slice(end + 1).join("\n");
  if (text.trim() === "") throw new SkillProblem("has no text after its front matter; write the instructions there");
  return { name, description, text: text.trim(), sha256: createHash("sha256").update(bytes).digest("hex") };
}

function decode(bytes: Buffer): string {
  if (bytes.length > maxSkillBytes) throw skillTooLarge(bytes.length);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new SkillProblem("is not UTF-8 text; save it as UTF-8");
  }
}

/** Makes the problem of a file over the size limit. */
export function skillTooLarge(bytes: number | bigint): SkillProblem {
  return new SkillProblem(
    `has ${bytes} bytes, over the limit of ${maxSkillBytes}; move parts into files beside it, which the model reads when it needs them`,
  );
}

const checkedFields = new Set(Object.keys(head.shape));

/** Reads front matter as YAML; its lines are counted from that of the file. */
async function readHead(yaml: string): Promise<unknown> {
  if (yaml.length > maxHeadLength) {
    throw new SkillProblem(`has front matter over ${maxHeadLength} characters; shorten it, or move parts below it`, 1);
  }
  // Loaded late: most services have no skills.
  const { LineCounter, isMap, isScalar, parseDocument } = await import("yaml");
  const lineCounter = new LineCounter();
  try {
    // The parser compares each key with each other one, so keys are compared here.
    const options = { prettyErrors: false, uniqueKeys: false, schema: "core", logLevel: "silent" } as const;
    const document = parseDocument(yaml, { ...options, lineCounter });
    if (isMap(document.contents)) {
      const keys = document.contents.items.map(({ key }) => (isScalar(key) ? String(key.value) : ""));
      const twice = keys.find((key, i) => checkedFields.has(key) && keys.indexOf(key) !== i);
      if (twice !== undefined) throw new SkillProblem(`has two fields ${twice} in its front matter; remove one`, 1);
    }
    const [error] = document.errors;
    if (error === undefined) return document.toJS({ maxAliasCount: 10 });
    const { line } = lineCounter.linePos(error.pos[0]);
    // The message may quote the file.
    const why = visible(error.message.slice(0, maxQuotedLength));
    throw new SkillProblem(`has front matter that is not YAML: ${why}; correct it, or quote the value`, line + 1);
  } catch (cause) {
    if (cause instanceof SkillProblem) throw cause;
    // Deep nesting ends in a RangeError, a bomb of aliases in a ReferenceError.
    throw new SkillProblem("has front matter that cannot be read; keep to name: and description:", 1);
  }
}

function checkHead(value: unknown, lines: readonly string[]): z.infer<typeof head> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new SkillProblem("has front matter without fields; write name: and description:", 1);
  }
  const checked = head.safeParse(value);
  if (checked.success) return checked.data;
  const [issue] = checked.error.issues;
  const field = String(issue?.path[0] ?? "");
  if (!Object.hasOwn(value, field)) throw new SkillProblem(`has no ${field} in its front matter; add it`, 1);
  throw new SkillProblem(`has a ${field} in its front matter that ${issue?.message}`, lineOf(lines, field));
}

/** Returns the line of a field of the front matter, from 1; 0 if it is written in another way. */
function lineOf(lines: readonly string[], field: string): number {
  return lines.findIndex((line) => line.startsWith(`${field}:`)) + 1;
}
