import { execFile } from "node:child_process";
import { chmod, cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, inject, test, vi } from "vitest";
import { needPrograms } from "../programs.ts";
import { buildImage, type Image, runInRoot } from "./image.ts";
import type { Life } from "./kubernetes/container.ts";

/** The image of the release, built from its container context and run as an engine runs it. */
// A busy machine takes five minutes to unpack Debian's packages and pack ours.
vi.setConfig({ hookTimeout: 1_800_000, testTimeout: 1_200_000 });
const run = promisify(execFile);
const { artifacts } = inject("installed");
let directory: string;
let image: Image;

beforeAll(async () => {
  needPrograms([
    ["bwrap", "bubblewrap"],
    ["mmdebstrap", "mmdebstrap"],
    ["systemd-nspawn", "systemd-container"],
  ]);
  directory = await mkdtemp(join(tmpdir(), "toolgate-image-"));
  // The user of the image reads below it.
  await chmod(directory, 0o755);
  const context = join(directory, "context");
  await mkdir(context);
  await run("tar", ["-xzf", join(artifacts, "toolgate-container-0.1.0.tgz"), "-C", context]);
  image = await buildImage(context, directory);
});
afterAll(() => rm(directory, { recursive: true, force: true }));

test("the image packs the same bytes as the release", async () => {
  const [ours, released] = await Promise.all([
    readFile(join(image.packed, "tmp/toolgate.tgz")),
    readFile(join(artifacts, "toolgate-0.1.0.tgz")),
  ]);
  expect(ours.equals(released)).toBe(true);
});

test("a container of it, read-only and as its user, is ready, runs a call that was approved behind the wall, and drains", async () => {
  const harness = join(directory, "harness");
  for (const name of ["approved-call.ts", "kubernetes/container.ts"])
    await cp(join(import.meta.dirname, name), join(harness, name));
  const [uid = "", gid = ""] = image.user.split(":");
  const env = { ...image.env, TOOLGATE_INSECURE_LISTEN: "true" };
  const life: Life = {
    redis: false,
    toolgate: ["toolgate"],
    entrypoint: image.entrypoint as Life["entrypoint"],
    serve: { command: image.command, env },
    preStop: ["sleep", "0"],
    probes: [],
    healthcheck: { command: image.healthcheck, env },
    clients: [{ command: ["token", "create", "--role", "approver"], env }],
    caller: env,
  };
  const mounts = ["--ro-bind", image.root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"];
  mounts.push("--ro-bind", harness, "/tmp/harness");
  for (const volume of image.volumes) {
    const place = join(directory, "volumes", volume);
    await mkdir(resolve(place, ".."), { recursive: true });
    await run("cp", ["--archive", join(image.root, volume), place]);
    mounts.push("--bind", place, volume);
  }
  const user = ["--reuid", uid, "--regid", gid, "--clear-groups", "bwrap", "--unshare-net", "--unshare-pid"];
  const args = [...user, ...mounts, "--die-with-parent", "node", "/tmp/harness/kubernetes/container.ts"];
  const { stdout, stderr } = await run("setpriv", [...args, JSON.stringify(life)], { env: image.env });
  const { called, exitCode } = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
  expect({ called, exitCode }).toEqual({ called: `${uid}\n`, exitCode: 0 });
  expect(stderr).toContain("layers disk, processes, files, network, system_calls");
});

test("its size, and that of its parts, is the one that docs/operations.md states", async () => {
  const mib = async (root: string, ...places: string[]) => {
    const { stdout } = await run("du", ["-csm", ...places.map((place) => join(root, place))]);
    return Number.parseInt(stdout.trim().split("\n").at(-1) ?? "", 10);
  };
  const [all, base] = await Promise.all([mib(image.root, ""), mib(image.base, "")]);
  const node = await mib(image.base, "usr/local");
  const toolgate = await mib(image.root, "usr/local/lib/node_modules/toolgate");
  const measured = [all, base - node, all - base - toolgate, node, toolgate];
  const page = await readFile(resolve(import.meta.dirname, "../../docs/operations.md"), "utf8");
  const sentence =
    /image takes (\d+) MiB unpacked: Debian (\d+), its packages (\d+), Node with npm (\d+), Toolgate (\d+)/;
  const [, ...stated] = sentence.exec(page.replaceAll("\n", " ")) ?? [];
  const near = stated.map((size, i) => Math.abs((measured[i] ?? 0) - Number(size)) <= Math.max(3, Number(size) * 0.1));
  expect(near, `measured: ${measured}`).toEqual([true, true, true, true, true]);
});

test("on an empty machine the lines of docs/operations.md lead to a first call that a person who signed in approved", async () => {
  const machine = join(directory, "machine");
  await run("cp", ["--archive", image.base, machine]);
  await cp(join(artifacts, "toolgate-0.1.0.tgz"), join(machine, "root/toolgate-0.1.0.tgz"));
  const lines = await installLines();
  const first = lines.findIndex((line) => line.includes("systemctl"));
  const given = [
    "apt-get update -q",
    "apt-get install -y --no-install-recommends systemd-sysv dbus",
    "useradd --create-home ann",
    "install -d -o ann /home/ann/shop",
  ];
  await runInRoot(machine, "/root", [...given, ...lines.slice(0, first).map(asRoot)].join("\n"));
  const [start = "", invite = "", login = "", call = "", inbox, ...more] = lines.slice(first);
  expect([inbox, ...more]).toEqual(["toolgate inbox"]);
  const script = [
    "set -ex",
    asRoot(start),
    `${asRoot(invite)} > /invited`,
    `runuser -l ann -c "${login.replace("CODE", "$(sed 's/ .*//;q' /invited)")}"`,
    asRoot(call),
    // The key in the inbox does the same.
    "read -r ask < <(runuser -l ann -c 'toolgate asks --watch --json')",
    `id=$(node -p 'JSON.parse(process.argv[1]).permissionAsked.id' "$ask")`,
    'runuser -l ann -c "toolgate reply $id once"',
    "until grep '\"tool.bash\"' /var/lib/toolgate/log/toolgate.log > /ran; do sleep 0.1; done",
  ];
  await writeFile(join(machine, "page.sh"), script.join("\n"));
  await writeFile(join(machine, "etc/systemd/system/page.service"), pageUnit);
  await mkdir(join(machine, "etc/systemd/system/multi-user.target.wants"), { recursive: true });
  await symlink("../page.service", join(machine, "etc/systemd/system/multi-user.target.wants/page.service"));
  const boot = [
    "--boot",
    "--private-network",
    "--register=no",
    "--keep-unit",
    "--console=pipe",
    "--directory",
    machine,
  ];
  await run("systemd-nspawn", ["--quiet", ...boot], {
    env: { ...process.env, SYSTEMD_NSPAWN_UNIFIED_HIERARCHY: "1" },
    timeout: 1_100_000,
  });
  const printed = await readFile(join(machine, "page.out"), "utf8");
  const ran = await readFile(join(machine, "ran"), "utf8").catch(() => "{}");
  expect(JSON.parse(ran), printed).toMatchObject({ success: true });
});

/** Runs the script and ends the machine. */
const pageUnit = `[Service]
Type=oneshot
ExecStart=/bin/bash /page.sh
ExecStopPost=/bin/systemctl --no-block poweroff
StandardOutput=file:/page.out
StandardError=inherit
`;

const asRoot = (line: string) => line.replaceAll(/\bsudo /g, "");

/** Returns the commands of the page. The base has npm, of which Debian's is 300 packages; the image has packed the checkout. */
async function installLines(): Promise<string[]> {
  const page = await readFile(resolve(import.meta.dirname, "../../docs/operations.md"), "utf8");
  const section = page.slice(page.indexOf("## Install"), page.indexOf("## Sign in"));
  const blocks = [...section.matchAll(/^```sh\n([\s\S]*?)^```/gm)].map(([, text = ""]) => text);
  const [packages = "", pack, ...lines] = blocks.join("").trim().split("\n");
  expect(pack).toMatch(/^npm ci && npm pack /);
  return [packages.replace(/ npm +#.*/, ""), ...lines];
}
