import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { afterAll, describe, expect, onTestFinished, test } from "vitest";
import type { RuleConfig } from "../../src/policy/rules.ts";
import type { Confined } from "../../src/sandbox/layers.ts";
import { NameIndex } from "../../src/sandbox/name-index.ts";
import type { Planned } from "../../src/sandbox/plan-messages.ts";
import { notCovered } from "../../src/sandbox/plan-thread.ts";
import { openSandbox } from "../../src/sandbox/sandbox.ts";
import { judgeBy, openTestWorkspace } from "../../src/testing.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";

const secret = "TOPSECRET";
const wanted = { profile: "workspace-write", network: "none" } as const;
const pipes = createPipes();
const sandbox = await openSandbox({ wanted, pipes, agents: new Map(), writable: [], hidden: [] });
afterAll(async () => {
  sandbox.close();
  await pipes.close();
});

/** A repository with a denied file in the directory `m`, and three directories in the order in which they are listed. */
async function openPlaces() {
  const names = ["one", "two", "three", "four", "five"];
  const files = names.map((name) => [`${name}/any.txt`, ""]);
  const site = await openTestWorkspace({ ...Object.fromEntries(files), ".git/HEAD": "ref: refs/heads/main\n" });
  onTestFinished(site.remove);
  const { directory } = site;
  const listed = readdirSync(directory).filter((name) => names.includes(name));
  const [early = "", , middle = "", , late = ""] = listed;
  const move = (from: string, to: string) => renameSync(join(directory, from), join(directory, to));
  mkdirSync(join(directory, early, "m"));
  writeFileSync(join(directory, early, "m/x.pem"), secret);
  const line = `cat ${early}/m/x.pem ${late}/m/x.pem`;
  return { ...{ directory, early, middle, late, line }, move };
}

/** Waits until the kernel's times of change distinguish what comes next. */
const settle = () => delay(50);

function confine(workspace: string, line: string, rules: RuleConfig): Promise<Confined> {
  const files = { rules: judgeBy(rules).fileRules(), read: [], edit: [] };
  const argv = ["/bin/bash", "--noprofile", "--norc", "-c", `echo started; ${line}`] as const;
  return sandbox.confine(argv, { agent: "build", cwd: workspace, workspace, directories: [], files });
}

async function run({ argv: [program, ...args], descriptors, release }: Confined): Promise<string> {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe", ...descriptors] });
  const chunks: Buffer[] = [];
  for (const stream of [child.stdout, child.stderr]) stream?.on("data", (chunk: Buffer) => chunks.push(chunk));
  await once(child, "close");
  await release();
  return Buffer.concat(chunks).toString();
}

/** The index of git blocks the plan when it is read, until the function that this returns has done the work. */
function holdPlan(directory: string): (work: () => void) => Promise<void> {
  const index = join(directory, ".git/index");
  execFileSync("mkfifo", [index]);
  return async (work) => {
    const writer = await open(index, "w");
    work();
    rmSync(index);
    writeFileSync(index, "");
    await writer.close();
  };
}

test("a file that moves from a directory that is still to be listed into one that was listed is not read", async () => {
  const { directory, early, middle, late, line, move } = await openPlaces();
  const rules: RuleConfig = { read: { "*": "allow", "*.pem": "deny", [`${middle}/*`]: "deny" } };
  await settle();
  expect(await run(await confine(directory, line, rules)), "control").toMatch(/^started\n.*denied/);
  move(`${early}/m`, `${late}/m`);
  const release = holdPlan(directory);
  await settle();
  const confined = confine(directory, line, rules);
  await release(() => move(`${late}/m`, `${early}/m`));
  expect(await run(await confined)).toMatch(/^toolgate: nothing was run, since .* was moved/);
});

test("nothing runs if a denied file moves between the plan and the mounts", async () => {
  const { directory, early, late, line, move } = await openPlaces();
  const confined = await confine(directory, line, { read: { "*": "allow", "*.pem": "deny" } });
  move(`${early}/m`, `${late}/m`);
  expect(await run(confined)).toMatch(/^toolgate: nothing was run, since .* was moved/);
});

describe("the second look of the index", () => {
  const pem = { key: "pem", test: (name: string) => (name.endsWith(".pem") ? 1 : 0) };

  async function openIndex() {
    const places = await openPlaces();
    const { directory, early, late } = places;
    const index = new NameIndex();
    const look = (name: string) => {
      index.list(join(directory, name));
      index.select(join(directory, name), pem);
    };
    const lookAtBoth = (meanwhile = () => {}) => {
      index.refresh();
      look(early);
      meanwhile();
      look(late);
    };
    await settle();
    lookAtBoth();
    return { ...places, index, lookAtBoth };
  }

  test("finds that a directory is where it was not listed", async () => {
    const { index, lookAtBoth, early, late, move } = await openIndex();
    move(`${early}/m`, `${late}/m`);
    await settle();
    lookAtBoth(() => move(`${late}/m`, `${early}/m`));
    expect(index.isMoving, "the first look").toBe(false);
    expect(index.recheck()).toBeGreaterThan(0);
    expect(index.isMoving).toBe(true);
  });

  test("finds no change where there is none, and counts one of other names without taking it for a move", async () => {
    const { directory, index, lookAtBoth, early } = await openIndex();
    lookAtBoth();
    expect([index.recheck(), index.isMoving]).toEqual([0, false]);
    writeFileSync(join(directory, early, "other.txt"), "");
    expect([index.recheck(), index.isMoving]).toEqual([1, false]);
    writeFileSync(join(directory, early, "k.pem"), "");
    expect([index.recheck(), index.isMoving]).toEqual([1, true]);
  });
});

describe("a later plan covers what an earlier one does not", () => {
  const empty: Planned = {
    ...{ emptied: [], masked: [], readOnly: [], absent: [], pins: [], closed: [], shown: [], sealed: [], writable: [] },
    ...{ excess: { read: 0, edit: 0 }, isPartial: false, open: [], identities: new Map() },
  };
  const at = (path: string, id: string) => ({ masked: [{ path, reason: "rule" }], identities: new Map([[path, id]]) });
  const missed = (now: Partial<Planned>, before: Partial<Planned>) =>
    notCovered({ ...empty, ...now }, { ...empty, ...before }).map(({ path }) => path);

  test("if a file is another one, not if it has another place", () => {
    expect(missed(at("/w/b.pem", "1"), at("/w/a.pem", "1"))).toEqual([]);
    expect(missed(at("/w/b.pem", "2"), at("/w/a.pem", "1"))).toEqual(["/w/b.pem"]);
  });

  test("unless the file is below a directory that is hidden", () => {
    const emptied = [{ path: "/w/secret", reason: "rule" }];
    expect(missed(at("/w/secret/b.pem", "2"), { emptied })).toEqual([]);
  });

  test("if a directory that was shown as a whole holds something that is not", () => {
    expect(missed({ shown: ["/w/docs/a.txt"] }, { shown: ["/w/docs"] })).toEqual(["/w/docs"]);
    expect(missed({ shown: ["/w/docs"] }, { shown: ["/w/docs"] })).toEqual([]);
  });
});
