import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";

const results = join(import.meta.dirname, "results.md");
const goals = join(import.meta.dirname, "../docs/internals/performance.md");

/** Replaces the text between the markers of a section of bench/results.md, or adds the section; what has goals has its own page. */
export async function writeSection(name: string, content: string): Promise<void> {
  const page = name === "goals" ? goals : results;
  await writeFile(page, replaceSection(await readFile(page, "utf8"), name, content));
}

/** Replaces the text between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`, at the end of a page that lacks them. */
export function replaceSection(text: string, name: string, content: string): string {
  const [open, close] = [`<!-- bench:${name} -->`, `<!-- /bench:${name} -->`];
  const [begin, end] = [text.indexOf(open), text.indexOf(close)];
  if (begin < 0 || end < begin) return `${text}\n## ${name}\n\n${open}\n${content.trim()}\n${close}\n`;
  return `${text.slice(0, begin + open.length)}\n${content.trim()}\n${text.slice(end)}`;
}
