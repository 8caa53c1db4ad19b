import { cp, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parse } from "yaml";
import * as z from "zod";
import { PermissionAction } from "../gen/opencode/tool/v1/permission_pb.ts";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { actions, type Rule } from "../src/policy/rules.ts";
import type { Http2Client } from "./http2-client.ts";
import type { Processes } from "./processes.ts";
import { table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Projects that are installed with their workflows. */
const projects = ["thread-stream", "fast-uri", "process-warning"];
const root = join(import.meta.dirname, "..");

/** Lines that agents run to look around, in any project. */
const looking = [
  "grep -rn TODO .",
  "grep -rln 'process.env' --include='*.js' .",
  "rg -n --hidden TODO",
  "cat *.json *.md",
  "head -n 5 .e* package.json",
  "find . -name '*.js' -newer package.json -exec wc -l {} +",
  "cp -r test /tmp/copy && diff -r test /tmp/copy",
  "tar czf /tmp/all.tgz .",
  "wc -l test/* *",
  "du -sh . && ls -laR . | head -50",
  "git diff && git status --short",
  "npm test",
];

/** A command line, where it runs, and the rules in addition to the configured ones. */
interface Line {
  command: string;
  workdir: string;
  rules?: readonly Rule[];
}

/** Counts the command lines that ask or are denied where rules allow all commands, without a sandbox and behind it. */
export async function measureAsks(processes: Processes, print: (text: string) => void): Promise<void> {
  const rules =
    'bash = "allow"\nedit = "allow"\nexternal_directory = "allow"\n[sandbox.agent.open]\nprofile = "off"\n[agent.open]\ndescription = "runs without the sandbox"\n';
  const { connect, workspace } = await startToolgate(processes, { name: "asks", rules });
  const client = connect("caller");
  const sets = [
    ["benign lines of `test/policy/bypass.json`, with their own rules", await benignLines(workspace)],
    [`scripts and CI lines of ${projects.join(", ")}`, await projectLines(workspace)],
    ["lines with which agents look around in these projects", projects.flatMap((workdir) => linesIn(workdir, looking))],
  ] as const;
  const rows: string[][] = [];
  for (const [name, lines] of sets) {
    const counts = { open: 0, build: 0 };
    for (const agent of ["open", "build"] as const)
      for (const line of lines) if (!(await isAllowed(client, agent, line))) counts[agent] += 1;
    rows.push([name, String(lines.length), String(counts.open), String(counts.build)]);
  }
  print(
    "Lines that ask or are denied, where rules allow each command and the defaults hold for `read`. Each project has an `.env` and a `test/.env`.",
  );
  print(table(["lines", "count", "without a sandbox", "behind it"], rows));
}

async function isAllowed(client: Http2Client, agent: string, { rules = [], ...input }: Line): Promise<boolean> {
  const request = { agent, tool: "bash", input: { ...input }, rules: rules.map((rule) => ({ ...rule })) };
  const { action } = await client.connect(ToolService.method.planTool, request);
  return action === PermissionAction.ALLOW;
}

const linesIn = (workdir: string, commands: readonly string[]) => commands.map((command) => ({ command, workdir }));

async function benignLines(workspace: string): Promise<Line[]> {
  const schema = z.array(
    z.object({
      id: z.string(),
      tool: z.string(),
      input: z.unknown(),
      rules: z.array(
        z.object({ permission: z.string(), pattern: z.string(), action: z.enum(["allow", "ask", "deny"]) }),
      ),
    }),
  );
  const cases = schema.parse(JSON.parse(await readFile(join(root, "test/policy/bypass.json"), "utf8")));
  await mkdir(join(workspace, "benign/src"), { recursive: true });
  for (const file of ["src/a.ts", "src/data.txt", ".env", "src/.env"])
    await writeFile(join(workspace, "benign", file), "x\n");
  return cases
    .filter(({ id, tool }) => id.startsWith("ok-") && tool === "bash")
    .map(({ input, rules }) => ({
      ...{ ...z.object({ command: z.string() }).parse(input), workdir: "benign" },
      rules: rules.map((rule) => ({ ...rule, action: actions[rule.action] })),
    }));
}

/** Copies the projects into the workspace; returns the lines of their scripts and workflows. */
async function projectLines(workspace: string): Promise<Line[]> {
  const lines: Line[] = [];
  for (const project of projects) {
    const source = join(root, "node_modules", project);
    const target = join(workspace, project);
    await cp(source, target, { recursive: true });
    for (const file of [".env", "test/.env"]) await writeFile(join(target, file), "TOKEN=x\n");
    const { scripts } = z
      .object({ scripts: z.record(z.string(), z.string()) })
      .parse(JSON.parse(await readFile(join(source, "package.json"), "utf8")));
    const workflows = join(source, ".github/workflows");
    const steps: string[] = [];
    for (const name of await readdir(workflows))
      steps.push(...runsIn(parse(await readFile(join(workflows, name), "utf8"))));
    lines.push(...linesIn(project, [...Object.values(scripts), ...steps]));
  }
  return lines;
}

/** Collects the values of `run` in a workflow. */
function runsIn(node: unknown): string[] {
  if (typeof node !== "object" || node === null) return [];
  return Object.entries(node).flatMap(([key, value]) =>
    key === "run" && typeof value === "string" ? [value] : runsIn(value),
  );
}
