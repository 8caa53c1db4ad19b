import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

const page = join(import.meta.dirname, "../docs/internals/performance.md");

/** Replaces the text between the markers of a section of docs/internals/performance.md. */
export async function writeSection(name: string, content: string): Promise<void> {
  await writeFile(page, replaceSection(await readFile(page, "utf8"), name, content));
}

/** Replaces the text between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`; throws if the page lacks them. */
export function replaceSection(text: string, name: string, content: string): string {
  const [open, close] = [`<!-- bench:${name} -->`, `<!-- /bench:${name} -->`];
  const [begin, end] = [text.indexOf(open), text.indexOf(close)];
  if (begin < 0 || end < begin)
    throw new Error(`docs/internals/performance.md has no section ${name}: add ${open} and ${close}`);
  return `${text.slice(0, begin + open.length)}\n${content.trim()}\n${text.slice(end)}`;
}
