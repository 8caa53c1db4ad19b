import { execFileSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import type { RuleConfig } from "../../src/policy/rules.ts";
import { openSandbox, type Sandbox } from "../../src/sandbox/sandbox.ts";
import { callTool, judgeBy, openTestWorkspace, type RunOptions, type TestWorkspace } from "../../src/testing.ts";
import { createBash } from "../../src/tools/bash.ts";
import { createPipes } from "../../src/tools/process/run-command.ts";
import { createSupervisor } from "../../src/tools/process/supervisor.ts";

const supervisor = createSupervisor({ replicaId: `disk-test-${process.pid}`, leaseMs: 15_000 });
const pipes = createPipes();
/** Not in a temporary directory, since commands see other ones. */
const place = realpathSync(mkdtempSync(join(homedir(), ".toolgate-test-")));
const home = join(place, "home");
const data = join(place, "data");
const before = process.env.HOME;
const secret = "TOPSECRET";

const files: Record<string, string> = {
  "data/file": "of the disk\n",
  "data/closed/file": secret,
  "apps/tool/bin/apptool": "#!/bin/sh\ncat $(dirname $0)/../lib/part\n",
  "apps/tool/lib/part": "part of the tool\n",
  "apps/tool/private": secret,
  "home/notes": secret,
  "home/.ssh/id_ed25519": secret,
  "home/.netrc": secret,
  "home/.cargo/bin/cargotool": "#!/bin/sh\necho cargo runs\n",
  "home/.cargo/credentials.toml": secret,
  "home/.nvm/versions/node/v1/bin/nodetool": "#!/bin/sh\necho node runs\n",
  "home/.local/bin/localtool": "#!/bin/sh\necho local runs\n",
  "home/.local/share/private": secret,
  "home/.local/share/uv/credentials/file": secret,
  "home/.gitconfig": "[user]\nname = Ann\n",
  "home/.npmrc": `//registry.example.com/:_authToken=${secret}\n`,
  "home/.npm/file": secret,
};

let sandbox: Sandbox;
let site: TestWorkspace;
/** Shows the whole disk, as a control. */
let open: Sandbox;

beforeAll(async () => {
  for (const [name, content] of Object.entries(files)) {
    const path = join(place, name);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, content);
    if (content.startsWith("#!")) chmodSync(path, 0o755);
  }
  process.env.HOME = home;
  const searchPath = ["apps/tool/bin", "home/.nvm/versions/node/v1/bin", "home/.cargo/bin", "home/.local/bin"].map(
    (name) => join(place, name),
  );
  const settings = {
    wanted: { profile: "workspace-write", network: "none" },
    agents: new Map([["plan", { profile: "read-only", network: "none" } as const]]),
    ...{ writable: [], hidden: [], home, searchPath: searchPath.join(delimiter), temporary: join(place, "sessions") },
  } as const;
  sandbox = await openSandbox(settings);
  open = await openSandbox({ ...settings, readable: ["/"] });
  site = await openTestWorkspace({ "file.txt": "of the workspace\n" });
});
afterAll(async () => {
  process.env.HOME = before;
  await site.remove();
  await supervisor.close();
  await pipes.close();
  sandbox.close();
  open.close();
  rmSync(place, { recursive: true });
});

interface DiskRun extends RunOptions {
  in?: Sandbox;
  rules?: RuleConfig;
  session?: string;
  agent?: string;
}

/** Runs a command behind the rules, as an agent. */
async function run(
  command: string,
  { in: used = sandbox, rules = {}, session = "one", agent = "build", ...options }: DiskRun = {},
) {
  site.judge = judgeBy(rules);
  const confine: Sandbox["confine"] = (argv, at) => used.confine(argv, { ...at, session, agent });
  const bash = createBash({ supervisor, pipes, sandbox: { ...used, confine } });
  const tools = `PATH=$PATH:${join(place, "apps/tool/bin")}:${home}/.nvm/versions/node/v1/bin:${home}/.cargo/bin:${home}/.local/bin`;
  return await callTool(site, bash, { command: `${tools}; echo started; ${command}` }, options);
}
const printed = async (...args: Parameters<typeof run>) => (await run(...args)).written.replace(/^started\n/, "");

describe("a command", () => {
  test("sees the system, its workspace, and no other data of the disk", async () => {
    const line = `cat file.txt; ls /usr/bin/env /etc/passwd; cat ${data}/file ${home}/notes; ls ${place} /home /root /srv /mnt`;
    const seen = await printed(line);
    expect(seen).toMatch(/^of the workspace\n\/etc\/passwd\n\/usr\/bin\/env\ncat: .*No such file/);
    expect(seen).not.toMatch(/of the disk|TOPSECRET/);
    expect(await printed(line, { in: open }), "control").toMatch(/of the disk\nTOPSECRET/);
  });

  test("runs toolchains of the home directory and of the search path, and sees nothing beside them", async () => {
    expect(await printed("nodetool; cargotool; localtool; apptool")).toBe(
      "node runs\ncargo runs\nlocal runs\npart of the tool\n",
    );
    const hidden = [
      ".ssh",
      ".netrc",
      ".cargo/credentials.toml",
      ".local/share",
      ".npmrc",
      ".npm/file",
      "../apps/tool/private",
    ];
    const line = `cd ~; cat ${hidden.join(" ")}; grep -rs ${secret} ~ ${place}`;
    expect(await printed(line)).not.toMatch(`${secret}\n`);
    expect(await printed(line, { in: open }), "control").toMatch(secret);
  });

  test("sees settings of tools that hold no credential, as they are now", async () => {
    expect(await printed("git config user.name; cat ~/.npmrc")).toMatch(/^Ann\ncat: .*No such file/);
    writeFileSync(join(home, ".npmrc"), "fund=false\n");
    expect(await printed("cat ~/.npmrc")).toBe("fund=false\n");
    writeFileSync(join(home, ".npmrc"), `//x/:_authToken=${secret}\n`);
    expect(await printed("cat ~/.npmrc")).toContain("No such file");
  });

  test("shares caches of tools with its session tree alone, and writes nothing into the home directory", async () => {
    const fill =
      "echo cached > ~/.npm/new; mkdir -p ~/.cargo/registry/a ~/.cache/b ~/go/pkg/mod; echo x > ~/.unknown; cat ~/.unknown";
    expect(await printed(fill)).toBe("x\n");
    expect(await printed("cat ~/.npm/new; ls ~/.cargo/registry ~/.cache ~/.unknown")).toMatch(
      /^cached\n[\s\S]*\.unknown': No such file[\s\S]*\.cache:\nb\n/,
    );
    expect(await printed("cat ~/.npm/new", { session: "two" })).toContain("No such file");
    for (const name of [".npm/new", ".cargo/registry", ".cache", ".unknown"])
      expect(existsSync(join(home, name))).toBe(false);
  });

  test("of an agent that may only read has an empty home directory each time", async () => {
    expect(await printed("echo x > ~/.npm-file; cat ~/.npm-file; cat ~/.npm/new", { agent: "plan" })).toMatch(
      /^x\ncat: /,
    );
    expect(await printed("cat ~/.npm-file", { agent: "plan" })).toContain("No such file");
  });

  test("can write neither beside its directories nor in the root of the disk", async () => {
    expect(await printed("touch /file /usr/file ~/.cargo/bin/file; mkdir /new")).toMatch(
      /^(touch: .*Read-only file system\n){3}mkdir: .*Read-only file system\n$/,
    );
  });
});

test.runIf(process.getuid?.() === 0)(
  "what only root may read in /etc is hidden although the service runs as root",
  async () => {
    const line = "head -c 4 /etc/shadow; ls /etc/ssl/private; id -un";
    expect(await printed(line)).toMatch(/^(head: .*\n)?root\n$/);
    const { hidden } = { hidden: existsSync("/etc/shadow") };
    expect(hidden, "control").toBe(true);
  },
);

test("the kernel's data is visible and read-only, but for what is hidden there", async () => {
  const wanted = { profile: "workspace-write", network: "none" } as const;
  const hidden = [{ path: "/sys/bus", kind: "directory" as const }];
  const hiding = await openSandbox({ wanted, agents: new Map(), writable: [], hidden });
  onTestFinished(hiding.close);
  const line = "ls -d /sys/bus/* | wc -l; ls -d /sys/class; touch /sys/file";
  const seen = /^(\d+)\n\/sys\/class\ntouch: .*Read-only file system\n$/;
  const [all = "", rest = ""] = [await printed(line), await printed(line, { in: hiding })];
  expect(Number(seen.exec(all)?.[1]), "control").toBeGreaterThan(0);
  expect(rest).toMatch(/^ls: .*\n0\n\/sys\/class\n/);
});

describe("a directory outside the workspace", () => {
  const rules: RuleConfig = { external_directory: { [`${data}/*`]: "allow", [`${data}/closed/*`]: "deny" } };
  const line = `cat ${data}/file; cat ${data}/closed/file; echo new > ${data}/new`;

  test("that rules allow is visible without its closed parts, and read-only", async () => {
    expect(await printed(line, { rules })).toMatch(
      /^of the disk\ncat: .*No such file.*\n.*new: Read-only file system\n$/,
    );
  });

  test("that rules allow to edit is writable", async () => {
    const seen = await printed(`${line}; cat ${data}/new; rm ${data}/new`, {
      rules: { ...rules, edit: { [`${data}/*`]: "allow" } },
    });
    expect(seen).toMatch(/^of the disk\ncat: .*No such file.*\nnew\n$/);
  });

  test("that the call was allowed is visible to it, and writable if the call may edit something below", async () => {
    const outside = [data];
    expect(await printed(`cat ${data}/file; echo new > ${data}/new`, { outside })).toMatch(
      /^of the disk\n.*Read-only file/,
    );
    const edit = [join(data, "new")];
    expect(await printed(`echo new > ${data}/new; cat ${data}/new; rm ${data}/new`, { outside, files: { edit } })).toBe(
      "new\n",
    );
  });

  test("below which a rule closes parts without a name is visible only to a call that names it", async () => {
    const more = { external_directory: { [`${data}/*`]: "allow", [`${data}/*/file`]: "deny" } } as const;
    expect(await printed(`cat ${data}/file`, { rules: more })).toContain("No such file");
    expect(await printed(`cat ${data}/file`, { rules: more, outside: [data] })).toBe("of the disk\n");
  });

  test("that is the root of the disk shows all of it", async () => {
    expect(await printed(`cat ${home}/notes; touch ${home}/x`, { outside: ["/"] })).toMatch(
      /^TOPSECRETtouch: .*Read-only/,
    );
  });
});

test("a worktree of git works with its repository, and a workspace cannot name another directory as one", async () => {
  const repository = join(place, "repository");
  const git = (...args: string[]) => execFileSync("git", ["-C", repository, ...args]);
  mkdirSync(repository);
  git("init", "-q");
  git("-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "first");
  await using tree = await openTestWorkspace();
  git("worktree", "add", "-q", tree.directory);
  tree.judge = judgeBy({});
  const bash = createBash({ supervisor, pipes, sandbox });
  const line = { command: "git log --format=%s; git status --short; ls $(git rev-parse --git-common-dir)" };
  expect((await callTool(tree, bash, line)).written).toMatch(/^first\n[\s\S]*objects/);
  writeFileSync(join(site.directory, ".git"), `gitdir: ${repository}/.git/worktrees/work\n`);
  expect(await printed("git log; ls .git")).toContain("not a git repository");
  rmSync(join(site.directory, ".git"));
});

test("a failure on a path that only this machine has names the settings that show it", async () => {
  const { note } = await run(`cat ${data}/file`);
  expect(note).toContain(`${data}/file: exists on this machine, but commands do not see it.`);
  expect(note).toContain("readable or writable under [sandbox]");
  expect((await run(`cat ${data}/none`)).note).not.toContain("exists on this machine");
  expect((await run("cat none")).note).not.toContain("exists on this machine");
  for (const permission of ["read", "external_directory"]) {
    const rules = { [permission]: { [`${data}/*`]: "deny" } } as const;
    expect((await run(`cat ${data}/file`, { rules })).note).not.toContain("exists on this machine");
  }
});

test("a link of the home directory that a command makes leads no later mount out of its sandbox", async () => {
  symlinkSync(data, join(home, "link"));
  await run(
    "rm -rf ~/.npm; ln -s ../../../oldroot/etc ~/.npm; rm -rf /run/toolgate-caches/.cache; ln -s / /run/toolgate-caches/.cache",
  );
  expect(await printed("ls ~/.cache/usr/bin/env; ls ~/.npm; touch ~/.cache/file")).toMatch(
    /env\n[\s\S]*Read-only file system/,
  );
});
