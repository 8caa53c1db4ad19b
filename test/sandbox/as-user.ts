import { spawnSync } from "node:child_process";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { judgeBy } from "../../src/testing.ts";

// Runs command lines in the sandbox of the workspace that is the working directory, and prints what they print.
const [rules = "", ...lines] = process.argv.slice(2);
const wanted = { profile: "workspace-write", network: "open" } as const;
const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [] });
if (sandbox.problem !== undefined) throw new Error(sandbox.problem);
const workspace = process.cwd();
for (const line of lines) {
  const files = { rules: judgeBy(JSON.parse(rules)).fileRules(), read: [], edit: [] };
  const place = { agent: "build", cwd: workspace, workspace, directories: [], files };
  const { argv, descriptors, release } = await sandbox.confine(["bash", "-c", `echo started; ${line}`], place);
  const [program, ...args] = argv;
  const { stdout, stderr } = spawnSync(program, args, { stdio: ["ignore", "pipe", "pipe", ...descriptors] });
  console.log(`${stdout}${stderr}`);
  await release();
}
process.exit(0);
