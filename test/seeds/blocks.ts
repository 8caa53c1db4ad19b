import { readFileSync } from "node:fs";
import { join } from "node:path";

/** The documents from which the product was ordered. `NNN.md` holds the code blocks of one, verbatim and in order. */
export const documents = ["000", "001", "002", "003", "004"] as const;

/** Code blocks by ID: the number of the document, and the place in it. */
export const blocks: ReadonlyMap<string, string> = new Map(
  documents.flatMap((document) =>
    [
      ...readFileSync(join(import.meta.dirname, `${document}.md`), "utf8").matchAll(/^```\w+ (\S+)\n([\s\S]*?)^```$/gm),
    ].map(([, id = "", text = ""]) => [id, text] as const),
  ),
);

/** Returns a code block. */
export function block(id: string): string {
  const text = blocks.get(id);
  if (text === undefined) throw new Error(`there is no code block ${id}`);
  return text;
}
