import { appendFile, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { PermissionService } from "../gen/opencode/tool/v1/permission_service_pb.ts";
import { PermissionReply } from "../gen/opencode/tool/v1/tool_pb.ts";
import { ToolService } from "../gen/opencode/tool/v1/tool_service_pb.ts";
import { openSession } from "./echoes.ts";
import type { Http2Client } from "./http2-client.ts";
import type { Processes } from "./processes.ts";
import { table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Lines of a kind, and the file that they run as code; for those that run none, one that they read. */
interface Kind {
  readonly name: string;
  readonly lines: readonly string[];
  readonly related: string;
  readonly runsCode: boolean;
}

const kinds: readonly Kind[] = [
  {
    ...{ name: "looks at files", related: "src/a.js", runsCode: false },
    lines: ["grep -n TODO src/a.js", "wc -l src/a.js src/b.js", "head -n 3 src/a.js", "git log -3", "ls -la src"],
  },
  {
    ...{ name: "changes files", related: "src/a.js", runsCode: false },
    lines: ["cp src/a.js src/c.js", "mkdir -p out/x", "touch out.txt", "sed -i s/one/two/ src/b.js", "rm -f out.txt"],
  },
  {
    ...{ name: "runs a script", related: "tools/step.sh", runsCode: true },
    lines: [
      "sh tools/step.sh",
      "bash tools/step.sh x",
      "./tools/step.sh",
      "time sh tools/step.sh",
      "sh < tools/step.sh",
    ],
  },
  {
    ...{ name: "builds or tests", related: "package.json", runsCode: true },
    lines: ["npm test", "npm run lint", "pnpm test", "npm run -s test", "yarn test"],
  },
];
/** A file that no line runs or reads. */
const unrelated = "docs/notes.md";

/**
 * Counts the lines that are asked again while another session edits a file before each answer: one that has nothing to do with the
 * line, where a repeat is needless, or the one that the line runs or reads.
 */
export async function measureRepeats(
  processes: Processes,
  { rounds }: { rounds: number },
  print: (text: string) => void,
): Promise<void> {
  const { connect, workspace } = await startToolgate(processes, {
    name: "repeats",
    rules: 'bash = "ask"\nedit = "allow"\nread = "allow"\n',
  });
  const [caller, approver] = [connect("caller"), connect("approver-1")];
  for (const [path, text] of Object.entries(files)) {
    await mkdir(join(workspace, path, ".."), { recursive: true });
    await writeFile(join(workspace, path), text, { mode: 0o755 });
  }
  const rows: string[][] = [];
  for (const { name, lines, related, runsCode } of kinds) {
    const asked = { none: 0, unrelated: 0, related: 0 };
    for (const [edit, path] of [
      ["none", ""],
      ["unrelated", unrelated],
      ["related", related],
    ] as const)
      for (let round = 0; round < rounds; round += 1)
        for (const command of lines) {
          const times = await timesAskedAgain({ caller, approver }, command, path && join(workspace, path));
          if (times > 0) asked[edit] += 1;
        }
    const count = `${lines.length * rounds}`;
    rows.push([name, count, `${asked.none}`, `${asked.unrelated}`, `${asked.related}${runsCode ? "" : " (reads it)"}`]);
  }
  print(
    "Command lines that were asked again, because another session edited a file of the workspace before each answer: one that no line uses, so that the repeat is needless, or the one that the line runs or reads.",
  );
  print(table(["the line", "lines", "no edit", "unrelated edit", "related edit"], rows));
}

const files: Readonly<Record<string, string>> = {
  "src/a.js": "// TODO one\n",
  "src/b.js": "// one\n",
  "tools/step.sh": "#!/bin/sh\ntrue\n",
  "package.json": '{ "scripts": { "test": "true", "lint": "true" } }\n',
  "docs/notes.md": "notes\n",
};

/** Calls a line and approves what it asks, each time after an edit of a path; returns how often it was asked again for a change. */
async function timesAskedAgain(
  { caller, approver }: Record<"caller" | "approver", Http2Client>,
  command: string,
  path: string,
): Promise<number> {
  const sessionId = await openSession(caller);
  const call = { sessionId, callId: "call", agent: "build", tool: "bash", input: { command } };
  let times = 0;
  const answered = new Set<string>();
  for (;;) {
    const { part, permissions } = await caller.connect(ToolService.method.callTool, { ...call, waitMs: 100 });
    if (part?.state.case === "completed" || part?.state.case === "error") return times;
    const [open] = permissions.filter(({ id }) => !answered.has(id));
    if (!open) continue;
    if (permissions.some(({ changed }) => changed !== "")) times += 1;
    for (const { id } of permissions) answered.add(id);
    if (path !== "") await appendFile(path, "\n");
    const answer = { sessionId, permissionId: open.id, expectedDigest: open.digest, reply: PermissionReply.ONCE };
    await approver.connect(PermissionService.method.respondToPermission, { ...answer, wholeCall: true });
  }
}
