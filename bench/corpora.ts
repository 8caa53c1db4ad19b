import { execFileSync } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as z from "zod";
import { PermissionAction } from "../gen/opencode/tool/v1/permission_pb.ts";
import { type PlanToolResponse, ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { riskWords } from "../src/core/risk-words.ts";
import type { Processes } from "./processes.ts";
import { table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** A line of a corpus: of a population whose asks are counted, or of a class that has to ask or be denied. */
type Line = { command: string } & ({ population: string } | { class: string });

const corpus = z.array(
  z.union([
    z.object({ command: z.string(), population: z.string() }),
    z.object({ command: z.string(), class: z.string() }),
  ]),
);

/** Rules to measure by, as lines of the configuration: those of `[permission]`, and what follows. */
const setups: readonly { name: string; rules?: string; settings?: string }[] = [
  { name: "defaults" },
  { name: "commands and edits allowed", rules: 'bash = "allow"\nedit = "allow"\n' },
  { name: "contained preset", settings: `[preset]\nname = "contained"\nregistries = ["packages.example"]\n` },
];

/** The directory that stands for the workspace in the corpora. */
const standIn = /(?<![\w.-])\/app(?![\w-])/g;

/** Counts the lines of corpora that ask, by population with their reasons, and the dangerous ones that do not. */
export async function measureCorpora(
  processes: Processes,
  print: (text: string) => void,
  files: readonly string[],
): Promise<void> {
  const lines: Line[] = [];
  for (const file of files) lines.push(...corpus.parse(JSON.parse(await readFile(file, "utf8"))));
  const groups = Map.groupBy(lines, (line) => ("class" in line ? dangerous : line.population));
  const rows: string[][] = [];
  for (const { name, ...written } of setups) {
    const { connect, workspace, server } = await startToolgate(processes, {
      name: name.replaceAll(" ", "-"),
      ...written,
    });
    await fillWorkspace(workspace);
    const client = connect("caller");
    const plans = new Map<Line, PlanToolResponse>();
    for (const line of lines) {
      const input = { command: line.command.replaceAll(standIn, workspace) };
      plans.set(line, await client.connect(ToolService.method.planTool, { agent: "build", tool: "bash", input }));
    }
    await processes.kill(server.pid);
    for (const [group, ofGroup] of groups) {
      const planned = ofGroup.map((line) => ({ line, plan: plans.get(line) }));
      const are = (action: PermissionAction) => planned.filter(({ plan }) => plan?.action === action);
      const [allowed, asking, denied] = [are(ALLOW), are(ASK), are(DENY)];
      if (group === dangerous) {
        rows.push([name, group, String(planned.length), `${allowed.length} got through`, String(denied.length)]);
        if (allowed.length < 20)
          print(allowed.map(({ line }) => `* got through (${name}): \`${shortLine(line.command)}\``).join("\n"));
        continue;
      }
      const rate = ((100 * asking.length) / planned.length).toFixed(1);
      rows.push([name, group, String(planned.length), rate, String(denied.length)]);
      print(`Reasons of ${group}, ${name}:\n\n${table(["asks", "reason", "such as"], rankReasons(asking))}`);
    }
  }
  print(table(["rules", "lines", "count", "asks per 100", "denied"], rows));
}

const dangerous = "dangerous";
const { ALLOW, ASK, DENY } = PermissionAction;

/** Counts reasons, the most frequent first; a line counts for each of its reasons. */
function rankReasons(asking: readonly { line: Line; plan: PlanToolResponse | undefined }[]): string[][] {
  const found = new Map<string, string[]>();
  for (const { line, plan } of asking)
    for (const reason of plan ? reasonsOf(plan) : []) found.set(reason, [...(found.get(reason) ?? []), line.command]);
  return [...found]
    .toSorted(([, one], [, other]) => other.length - one.length)
    .slice(0, 30)
    .map(([reason, [first = "", ...others]]) => [String(others.length + 1), reason, `\`${shortLine(first)}\``]);
}

/** The reasons of the decisions that ask or deny, without what only this line names, and the risks. */
function reasonsOf({ asks, decisions, problem }: PlanToolResponse): Set<string> {
  const kinds = asks.flatMap(({ risks }) => risks.map(({ kind }) => `risk ${riskWords.get(kind)}`));
  const reasons = decisions
    .filter(({ action }) => action !== PermissionAction.ALLOW)
    .map(
      ({ permission, reason }) =>
        `${permission}: ${reason.replaceAll(/"(?:[^"\\]|\\.)*"/g, '"…"').replaceAll(/(?<=\s|^)\/\S+/g, "/…")}`,
    );
  return new Set([...kinds, ...reasons, ...(problem ? [`not planned: ${problem.message.slice(0, 60)}`] : [])]);
}

const shortLine = (line: string) => line.slice(0, 90).replaceAll("\n", "⏎").replaceAll("|", "\\|").replaceAll("`", "'");

/** Writes the files that lines of the corpora name most, into a repository. */
async function fillWorkspace(workspace: string): Promise<void> {
  await mkdir(join(workspace, "src"), { recursive: true });
  await mkdir(join(workspace, "tests"), { recursive: true });
  const files = ["src/a.ts", "notes.txt", "data.db", "tests/test_outputs.py", "README.md", ".env", ".env.production"];
  for (const file of files) await writeFile(join(workspace, file), "x\n");
  await writeFile(join(workspace, "package.json"), '{"scripts":{"build":"tsc","test":"vitest run"}}\n');
  execFileSync("git", ["init", "-q", workspace]);
}
