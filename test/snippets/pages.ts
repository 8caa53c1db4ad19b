import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** A fenced block of a page. */
export interface Block {
  readonly page: string;
  /** Of its first line of text. */
  readonly line: number;
  readonly language: string;
  readonly text: string;
  /** Nothing stands between it and the block before. */
  readonly follows: boolean;
}

/** Returns the blocks of a page, in order. */
export function blocksOf(directory: string, page: string): Block[] {
  const text = readFileSync(join(directory, page), "utf8");
  return [...text.matchAll(/^```([^\n]*)\n([\s\S]*?)^```$/gm)].map((found) => ({
    page,
    line: text.slice(0, found.index).split("\n").length + 1,
    language: found[1] ?? "",
    text: found[2] ?? "",
    follows: /```\n\s*$/.test(text.slice(0, found.index)),
  }));
}

/** Splits a block of shell text into commands, which may go over several lines. */
export function commandsOf(text: string): string[] {
  const commands: string[] = [];
  let open = "";
  for (const line of text.split("\n")) {
    open += open === "" ? line : `\n${line}`;
    const isWhole = !open.endsWith("\\") && spawnSync("bash", ["-n", "-c", open]).status === 0;
    if (!isWhole) continue;
    if (open.trim() !== "" && !open.trim().startsWith("#")) commands.push(open);
    open = "";
  }
  if (open !== "") throw new Error(`this is no command of a shell:\n${open}`);
  return commands;
}

/** Makes a pattern of a text of a page: `…` stands for any text, and other lines, such as warnings, may stand in between. */
export function patternOf(shown: string): RegExp {
  const escaped = shown.trim().replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(escaped.replaceAll(/,? ?…/g, any).replaceAll(/\s*\n\s*/g, any));
}

const any = "[\\s\\S]*?";
