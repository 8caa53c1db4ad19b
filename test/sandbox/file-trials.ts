import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import {
  cpSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PermissionAction, PermissionLayer } from "../../gen/opencode/tool/v1/permission_pb.ts";
import { expandAsks } from "../../src/call/decide.ts";
import { createPolicy } from "../../src/policy/policy.ts";
import { fromConfig, type RuleConfig } from "../../src/policy/rules.ts";
import type { GitNames } from "../../src/policy/shell/touched.ts";
import { createGitHistory } from "../../src/sandbox/git-history.ts";
import { openSandbox, type Sandbox } from "../../src/sandbox/sandbox.ts";
import { openWorkspace } from "../../src/tool/workspace.ts";
import { environmentOf } from "../../src/tools/process/confine-command.ts";

/** A line with the verdict of the analysis, and what its run did to files that rules deny. */
export interface Trial {
  line: string;
  isAllowed: boolean;
  /** Files that the line read although rules deny that. */
  read: string[];
  /** Paths that it changed although rules deny that. */
  changed: string[];
  /** True if it printed what only git's objects hold. */
  printedPast: boolean;
  printed: string;
}

/** A part of the product that is left out of trials, to show that they notice. */
export type Fault = "analysis of reads" | "masks";

/** Rules that allow programs by name: whatever else a line does has to ask. */
const programs = Object.fromEntries(
  "cat head tail sort uniq wc cut nl tac rev od strings base64 md5sum paste comm cmp fold xxd file stat ls du grep find diff awk sed tar xargs dd cp mv ln rm touch tee chmod mkdir truncate install shuf split git env timeout command bash cd echo"
    .split(" ")
    .map((program) => [`${program} *`, "allow" as const]),
);
const files = {
  external_directory: "deny",
  read: { "*": "allow", "*.env": "deny", "*secrets/*": "deny", "*id_rsa": "deny", "*conf/db.yaml": "deny" },
  edit: { "*": "allow", "*locked/*": "deny" },
} satisfies RuleConfig;
/** Behind the masks each line may run. */
const rulesFor = (isConfined: boolean): RuleConfig => ({ ...files, bash: isConfined ? "allow" : programs });
const secrets = [".env", "prod.env", "secrets/key.txt", "id_rsa", "conf/db.yaml"];
const locked = ["locked/f.txt"];
const fixture: Record<string, string> = {
  ".env": "TOPSECRET env\n",
  "prod.env": "TOPSECRET prod\n",
  "secrets/key.txt": "TOPSECRET key\n",
  id_rsa: "TOPSECRET rsa\n",
  "conf/db.yaml": "TOPSECRET db\n",
  "public/a.txt": "Text a\n",
  "public/sub/b.txt": "Text b\n",
  "sub/x.txt": "Text x\n",
  "locked/f.txt": "Text locked\n",
  list: ".env\nid_rsa\n",
};
/** In the history the denied files have another content, which no mount can hide. */
const past = `
set -e
git init -q -b main . --template=
git config user.email a@example.com; git config user.name A
for file in .env secrets/key.txt conf/db.yaml; do mkdir -p "$(dirname $file)"; echo PASTSECRET $file > $file; done
mkdir -p public sub && echo 'Text a' > public/a.txt && echo 'Text x' > sub/x.txt
git add . && git commit -qm first
git rm -q .env secrets/key.txt && echo 'Text old' > sub/x.txt && git add . && git commit -qm second
echo 'Text x' > sub/x.txt && git commit -qam third
git gc -q && rm -rf .git/logs
`;

/** Runs lines in real bash, each in a fresh copy of the fixture. */
export interface Trials {
  /** Judges and runs lines. */
  run(lines: readonly string[], fault?: Fault): Promise<Trial[]>;
  close(): void;
}

/** Opens the sandbox in which the lines run; `isConfined` judges them and runs them behind its masks. */
export async function openTrials({ isConfined }: { isConfined: boolean }): Promise<Trials> {
  const wanted = { profile: "workspace-write", network: "none" } as const;
  const sandbox = await openSandbox({ wanted, agents: new Map(), writable: [], hidden: [], maxMasks: 1_000 });
  if (sandbox.problem !== undefined) throw new Error(sandbox.problem);
  const history = createGitHistory({ sandbox, env: () => environmentOf({}), maxWaitMs: 60_000 });
  const template = mkdtempSync(join(tmpdir(), "toolgate-template-"));
  execFileSync("bash", ["-c", past], { cwd: template });
  // All copies have the same history.
  const gitNames = () => history.namesOf(template);
  return {
    async run(lines, fault) {
      const root = realpathSync(mkdtempSync(join(tmpdir(), "toolgate-trials-")));
      try {
        const places = lines.map((_, i) => newCopy(template, join(root, String(i))));
        const verdicts: boolean[] = [];
        for (const [i, line] of lines.entries())
          verdicts.push(await isAllowed(line, places[i] ?? "", { gitNames, isConfined, fault }));
        const before = places.map(lockedState);
        const isRun = (i: number) => isConfined || verdicts[i] === true;
        await runInside(sandbox, root, lines, isRun, isConfined && fault !== "masks");
        return lines.map((line, i) => {
          const place = places[i] ?? "";
          const printed = isRun(i) ? readFileSync(join(root, "out", String(i)), "utf8") : "";
          return {
            ...{ line, isAllowed: verdicts[i] === true, printed },
            read: secrets.filter((file) => wasRead(join(place, file))),
            changed: lockedState(place) === before[i] ? [] : locked,
            printedPast: printed.includes("PASTSECRET"),
          };
        });
      } finally {
        rmSync(root, { recursive: true, force: true });
      }
    },
    close() {
      history.close();
      sandbox.close();
      rmSync(template, { recursive: true });
    },
  };
}

/** A time long ago: the kernel notes the next read of a file whose last one is not later than its change. */
const longAgo = new Date("2001-01-01");
const changedAt = new Date("2002-01-01");

function newCopy(template: string, place: string): string {
  cpSync(join(template, ".git"), join(place, ".git"), { recursive: true });
  for (const [file, content] of Object.entries(fixture)) {
    mkdirSync(join(place, file, ".."), { recursive: true });
    writeFileSync(join(place, file), content);
  }
  mkdirSync(join(place, "empty"));
  symlinkSync("public/sub", join(place, "link"));
  for (const file of secrets) utimesSync(join(place, file), longAgo, changedAt);
  return place;
}

const wasRead = (path: string) => {
  const stats = lstatSync(path, { throwIfNoEntry: false });
  // A command that sets both times has read nothing.
  return stats !== undefined && stats.atimeMs !== longAgo.getTime() && stats.mtimeMs === changedAt.getTime();
};

function lockedState(place: string): string {
  return JSON.stringify(
    locked.map((path) => {
      const stats = lstatSync(join(place, path), { throwIfNoEntry: false });
      return stats && [stats.ino, stats.mode, stats.size, stats.mtimeMs];
    }),
  );
}

async function isAllowed(
  line: string,
  place: string,
  { gitNames, isConfined, fault }: { gitNames: () => Promise<GitNames>; isConfined: boolean; fault: Fault | undefined },
): Promise<boolean> {
  const policy = createPolicy({ guard: { dataDirectory: "/nowhere" }, home: "/home/nobody" });
  const config = { layer: PermissionLayer.CONFIG, rules: fromConfig(rulesFor(isConfined), "/home/nobody") };
  const layers = { wide: [config], narrow: [] };
  const workspace = await openWorkspace("default", place);
  const ask = { permission: "bash", patterns: [line], cwd: place, ...(isConfined && { isConfined }) };
  const parts = {
    policy,
    gitNames,
    lines: { read: async () => new Map(), charge() {}, checkBudget() {}, close: async () => {} },
  };
  const asks = await expandAsks(parts, "test", [ask], layers, workspace);
  const left = asks.filter(({ permission }) => fault !== "analysis of reads" || permission !== "read");
  return left.flatMap((one) => policy.judge(one, layers)).every(({ action }) => action === PermissionAction.ALLOW);
}

/** Runs the lines one after the other in one sandbox; what each prints goes to a file. */
async function runInside(
  sandbox: Sandbox,
  root: string,
  lines: readonly string[],
  isRun: (i: number) => boolean,
  isMasked: boolean,
): Promise<void> {
  mkdirSync(join(root, "out"));
  mkdirSync(join(root, "lines"));
  const chosen = lines.map((_, i) => i).filter(isRun);
  for (const i of chosen) writeFileSync(join(root, "lines", String(i)), lines[i] ?? "");
  const script = `for i in ${chosen.join(" ")}; do cd ${root}/$i && timeout -s KILL 2 bash --noprofile --norc -c "$(cat ${root}/lines/$i)" > ${root}/out/$i 2>&1 < /dev/null; done`;
  const config = { layer: PermissionLayer.CONFIG, rules: fromConfig(files, "/home/nobody") };
  const rules = {
    wide: [config],
    narrow: [],
    guard: { dataDirectory: "/nowhere" },
    home: "/home/nobody",
    connectorFiles: [],
  };
  const place = { agent: "build", cwd: root, workspace: root, directories: [] };
  const confined = await sandbox.confine(["bash", "-c", script], {
    ...place,
    ...(isMasked && { files: { rules, read: [], edit: [] } }),
  });
  const [program, ...args] = confined.argv;
  const child = spawn(program, args, {
    stdio: ["ignore", "ignore", "inherit", ...confined.descriptors],
    env: { ...environmentOf({}), ...confined.env, LC_ALL: "C.UTF-8" },
  });
  await once(child, "close");
  await confined.release();
}
