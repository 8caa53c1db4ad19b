import { dirname } from "node:path";
import type { Question } from "../policy.ts";
import { pathWords, readCommand } from "./command.ts";

/** What a question stands for: itself, and for a simple command also the folders outside the workspace that its words name. */
export async function expand(
  question: Question,
  resolve: (path: string, cwd: string) => Promise<{ absolute: string; external: boolean; isFolder: boolean }>,
): Promise<Question[]> {
  if (question.permission !== "bash") return [question];
  const words = question.patterns.flatMap((line) => pathWords(readCommand(line).words));
  const folders = new Set<string>();
  for (const word of words) {
    const { absolute, external, isFolder } = await resolve(word, question.cwd ?? ".");
    if (external) folders.add(isFolder ? absolute : dirname(absolute));
  }
  if (folders.size === 0) return [question];
  const paths = [...folders];
  const patterns = paths.map((folder) => (folder === "/" ? "/*" : `${folder}/*`));
  return [{ permission: "external_directory", patterns, paths }, question];
}
