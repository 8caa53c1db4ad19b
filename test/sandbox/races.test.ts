import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, onTestFinished, test } from "vitest";
import type { RuleConfig } from "../../src/policy/rules.ts";
import type { Confined } from "../../src/sandbox/layers.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { judgeBy, openTestWorkspace } from "../../src/testing.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";

const secret = "TOPSECRET";
const rules: RuleConfig = {
  read: { "*": "allow", "secrets/*": "deny", "*.pem": "deny", "conf/db.yaml": "deny" },
  edit: { "*": "allow", "locked/*": "deny" },
};
const open: RuleConfig = { read: "allow", edit: "allow" };
/** Attempts of each race: within one command, or each of them a new command. */
const [attempts, starts] = process.env.TOOLGATE_LONG === "1" ? [400, 80] : [100, 15];

const wanted = { profile: "workspace-write", network: "none" } as const;
const pipes = createPipes();
const mountPoints = mkdtempSync(join(tmpdir(), "toolgate-test-"));
const sandbox = await openSandbox({ wanted, pipes, mountPoints, agents: new Map(), writable: [], hidden: [] });
afterAll(async () => {
  sandbox.close();
  rmSync(mountPoints, { recursive: true });
  await pipes.close();
});

interface Race {
  /** Python that changes the workspace once and back, again and again. */
  flip: readonly string[];
  /** A command line that tries once; prints the secret, or changes `locked/f.txt`, if it succeeds. */
  attempt: string;
  /** True if a new command has to be started for each attempt. */
  isOfStart: boolean;
  /** True if next to no walk through the workspace sees the file, so that no command is started. */
  isUnseen?: boolean;
}

const far = "1/2/3/4/5/6/7/8/9/10/11/12";

const swap = (one: string, other: string) => [`os.rename("${one}", "${other}")`, `os.rename("${other}", "${one}")`];
const link = (name: string, ...targets: string[]) =>
  targets.flatMap((target) => [`os.symlink("${target}", "tmp")`, `os.rename("tmp", "${name}")`]);

const races: Record<string, Race> = {
  "a link leads to a denied directory in turn": {
    flip: link("nd", "public", "secrets"),
    attempt: "cat nd/key.txt",
    isOfStart: false,
  },
  "a link leads to a directory in turn that may not be changed": {
    flip: link("nl", "public", "locked"),
    attempt: "echo changed > nl/f.txt",
    isOfStart: false,
  },
  "a denied file is renamed": { flip: swap("a.pem", "b.pem"), attempt: "cat a.pem b.pem", isOfStart: true },
  "the directory of a denied file is renamed": {
    flip: swap("d", "e"),
    attempt: "cat d/x.pem e/x.pem",
    isOfStart: true,
  },
  "a directory far above a denied file is renamed": {
    flip: swap("f", "g"),
    attempt: `cat f/${far}/x.pem g/${far}/x.pem`,
    isOfStart: true,
    isUnseen: true,
  },
  "the directory of a denied file is moved": {
    flip: swap("left/m", "right/m"),
    attempt: "cat left/m/x.pem right/m/x.pem",
    isOfStart: true,
  },
};

/** A workspace in which a program makes the changes of a race until the test ends. */
async function openRace({ flip }: Race) {
  const site = await openTestWorkspace({
    "secrets/key.txt": secret,
    "secrets/k.pem": secret,
    "public/key.txt": "harmless",
    "public/f.txt": "old",
    "locked/f.txt": "old",
    "conf/db.yaml": "",
    ...{ "a.pem": secret, "d/x.pem": secret, "left/m/x.pem": secret, "right/other": "" },
    [`f/${far}/x.pem`]: secret,
  });
  onTestFinished(site.remove);
  symlinkSync("public", join(site.directory, "nd"));
  symlinkSync("public", join(site.directory, "nl"));
  const program = ["import os", "print('started', flush=True)", "while True:", ...flip.map(guarded)].join("\n");
  const flipper = spawn("python3", ["-c", program], { cwd: site.directory, stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => stop(flipper));
  await once(flipper.stdout, "data");
  return { directory: site.directory, stop: () => stop(flipper) };
}

/** A step that fails, since bubblewrap made something in its way, is left out. */
const guarded = (line: string) => `  try: ${line}\n  except OSError: pass`;

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill("SIGKILL");
  await once(child, "exit");
}

/** Runs a command line in the sandbox, or in one that waits; returns what it printed, undefined if it was not started. */
async function run(line: string, workspace: string, config: RuleConfig): Promise<string | undefined> {
  const files = { rules: judgeBy(config).fileRules(), read: [], edit: [] };
  const place = { agent: "build", cwd: workspace, workspace, directories: [], files };
  const argv = ["/bin/bash", "--noprofile", "--norc", "-c", `echo started; ${line}`] as const;
  const spare = await sandbox.prepare(place, {}).catch(() => undefined);
  const waiting = spare && start(spare);
  const waits = await Promise.race([spare?.ready.catch(() => "fails"), waiting?.ended]);
  const confined = await sandbox.confine(argv, place, waits === undefined ? spare : undefined).catch(() => undefined);
  if (confined?.begin) {
    confined.begin({});
    becameCommand += 1;
  } else waiting?.kill();
  const printed = confined && (await (confined.begin ? waiting : start(confined))?.ended);
  await confined?.release();
  await waiting?.ended;
  await spare?.end();
  return printed?.startsWith("started") ? printed : undefined;
}

/** Command lines that ran in a sandbox that had waited. */
let becameCommand = 0;

function start({ argv, descriptors }: Pick<Confined, "argv" | "descriptors">) {
  const [program, ...args] = argv;
  const child = spawn(program, args, {
    stdio: ["ignore", "pipe", "pipe", ...descriptors],
    detached: true,
  });
  const chunks: Buffer[] = [];
  for (const stream of [child.stdout, child.stderr]) stream?.on("data", (chunk: Buffer) => chunks.push(chunk));
  return { ended: once(child, "close").then(() => Buffer.concat(chunks).toString()), kill: () => killGroup(child.pid) };
}

function killGroup(pid: number | undefined): void {
  try {
    if (pid !== undefined) process.kill(-pid, "SIGKILL");
  } catch (error) {
    if (!String(error).includes("ESRCH")) throw error;
  }
}

/**
 * Makes the attempts, and more while none was started, since a start that notices the change is refused; returns how many command
 * lines were started, and how many of them succeeded.
 */
async function attemptAll(
  { attempt, isOfStart, isUnseen = false }: Race,
  directory: string,
  config: RuleConfig,
  times: number,
) {
  const line = isOfStart ? attempt : `for ((i = 0; i < ${times}; i++)); do ${attempt}; done`;
  const least = isOfStart ? times : 1;
  let [started, succeeded] = [0, 0];
  for (let count = 0; count < least || (!isUnseen && started === 0 && count < 20 * least); count += 1) {
    const printed = await run(line, directory, config);
    if (printed !== undefined) started += 1;
    if (printed?.includes(secret)) succeeded += 1;
    if (config === open && (succeeded > 0 || wasChanged(directory))) break;
  }
  return { started, succeeded };
}

const wasChanged = (directory: string) => readFileSync(join(directory, "locked/f.txt"), "utf8") !== "old";

describe.each(Object.entries(races))("while %s", (_, race) => {
  const count = race.isOfStart ? starts : attempts;
  test(`none of ${count} attempts succeeds, and some do where nothing is denied`, async () => {
    const control = await openRace(race);
    const found = await attemptAll(race, control.directory, open, count);
    await control.stop();
    expect(found.succeeded > 0 || wasChanged(control.directory), "control").toBe(true);
    const real = await openRace(race);
    const { started, succeeded } = await attemptAll(race, real.directory, rules, race.isUnseen ? 2 * count : count);
    await real.stop();
    expect({ succeeded, wasChanged: wasChanged(real.directory) }).toEqual({ succeeded: 0, wasChanged: false });
    expect(started > 0 || race.isUnseen).toBe(true);
  });
});

test("some of those commands ran in a sandbox that had waited", () => {
  expect(becameCommand).toBeGreaterThan(0);
});

test("a pinned directory that is exchanged for a link to one outside does not lead there", async () => {
  const outside = join(homedir(), `.toolgate-test-${process.pid}`);
  mkdirSync(outside);
  writeFileSync(join(outside, "db.yaml"), secret);
  onTestFinished(() => rmSync(outside, { recursive: true }));
  const race: Race = {
    flip: [
      'os.rename("conf", "c2")',
      `os.symlink("${outside}", "conf")`,
      'os.remove("conf")',
      'os.rename("c2", "conf")',
    ],
    attempt: "touch conf/changed",
    isOfStart: true,
  };
  const { directory, stop: end } = await openRace(race);
  const { started } = await attemptAll(race, directory, rules, starts);
  await end();
  expect(started).toBeGreaterThan(0);
  expect(readdirSync(outside)).toEqual(["db.yaml"]);
});
