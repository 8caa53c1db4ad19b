import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { table } from "./report.ts";

const root = join(import.meta.dirname, "..");
const results = join(root, ".cache/long-waits.json");

/** Runs the test of long waits with the real agents, about 13 minutes, and prints what each way lost. */
export async function measureWaits(print: (text: string) => void): Promise<void> {
  await rm(results, { force: true });
  const args = ["run", "--config", "test/agents/vitest.config.ts", "test/agents/long-waits.test.ts"];
  const child = spawn("vitest", args, {
    cwd: root,
    stdio: ["ignore", "inherit", "inherit"],
    env: { ...process.env, LONG: "1", PATH: `${join(root, "node_modules/.bin")}:${process.env.PATH}` },
  });
  const [code] = await once(child, "exit");
  if (code !== 0) throw new Error(`the test of long waits failed with status ${code}`);
  print(waitsReport(JSON.parse(await readFile(results, "utf8"))));
}

/** Figures of one way, as the test writes them. */
interface WaitFigures {
  readonly way: string;
  readonly seconds: number;
  readonly waits: number;
  readonly lost: number;
  readonly early: number;
}

function waitsReport(figures: readonly WaitFigures[]): string {
  const sum = (of: (figure: WaitFigures) => number) => figures.reduce((total, figure) => total + of(figure), 0);
  const rows = figures.map(({ way, seconds, waits, lost, early }) => [
    way,
    `${seconds}`,
    `${waits}`,
    `${early / waits}`,
    `${lost}`,
  ]);
  return [
    `Lost: ${sum(({ lost }) => lost)} of ${sum(({ waits }) => waits)}.`,
    table(["way", "s until the approval", "waits", "answers before it, each", "lost"], rows),
  ].join("\n\n");
}
