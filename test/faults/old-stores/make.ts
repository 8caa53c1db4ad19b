import { execFileSync, execSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { DatabaseSync } from "node:sqlite";
import { toJson } from "@bufbuild/protobuf";
import { type SessionEvent, SessionEventSchema } from "../../../gen/opencode/tool/v1/event_pb.ts";
import { PermissionReply, ToolPartSchema } from "../../../gen/opencode/tool/v1/tool_pb.ts";
import { connect } from "../../e2e/clients.ts";
import { fakeTime } from "../fake-time.ts";

// node test/faults/old-stores/make.ts COMMIT …: makes the stores that old-stores.test.ts opens, each with the code of its commit.

const repository = join(import.meta.dirname, "../../..");

for (const commit of process.argv.slice(2)) await makeStore(commit);

async function makeStore(commit: string): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "toolgate-old-"));
  const source = join(folder, "source");
  const data = join(folder, "data");
  try {
    await mkdir(source);
    execSync(`git archive ${commit} | tar -x -C ${source}`, { cwd: repository });
    await install(source);
    const old = await start(folder, source);
    const expected = await fill(old.url);
    old.child.kill("SIGKILL");
    await once(old.child, "exit");
    dropGuard(data);
    await writeFile(join(data, "expected.json"), JSON.stringify(expected));
    const target = join(import.meta.dirname, `${commit}.tar.xz`);
    const names = ["toolgate.sqlite", "toolgate.sqlite-wal", "output", "expected.json"].filter((name) =>
      existsSync(join(data, name)),
    );
    execFileSync("tar", ["-cJf", target, "-C", data, ...names]);
    console.log(`${commit}: ${expected.events.length} events`);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Installs the dependencies of a version; later ones were bundled from development dependencies, which are ours. */
async function install(source: string): Promise<void> {
  const { dependencies } = JSON.parse(await readFile(join(source, "package.json"), "utf8"));
  const options = ["ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"];
  if ("zod" in dependencies) execFileSync("npm", options, { cwd: source, stdio: "ignore" });
  else await symlink(join(repository, "node_modules"), join(source, "node_modules"));
}

async function start(folder: string, source: string) {
  await mkdir(join(folder, "workspace"));
  const tokens = ["caller", "approver"].map(
    (role) => `[[token]]\nid = "${role}"\nroles = ["${role}"]\nvalue = "${role}-token-for-tests"\n`,
  );
  await writeFile(join(folder, "toolgate.toml"), `[agent.free.permission]\n"*" = "allow"\n${tokens.join("")}`);
  const paths = { workspace: "workspace", data: "data", config: "toolgate.toml" };
  const flags = Object.entries(paths).flatMap(([flag, name]) => [`--${flag}`, join(folder, name)]);
  const child = spawn(process.execPath, [join(source, "src/main.ts"), "serve", "--listen", "127.0.0.1:0", ...flags], {
    cwd: source,
    env: { PATH: process.env.PATH, HOME: folder, ...fakeTime(), FAKETIME: "@2026-11-01 12:00:00" },
    stdio: ["ignore", "ignore", "pipe"],
  });
  for await (const line of createInterface({ input: child.stderr })) {
    const url = / is at .*?(https?:\/\/[0-9.:]+)/.exec(line)?.[1];
    if (url !== undefined) return { url, child: child.on("error", console.error) };
    console.log(line);
  }
  throw new Error("the old service did not start");
}

/** Makes calls in every state and returns what the service reports of them. */
async function fill(url: string) {
  const [agent, person] = [connect({ url }, "caller"), connect({ url }, "approver")];
  const sessionId = await agent.newSession();
  const bash = (callId: string, command: string, as: string) => ({
    ...{ sessionId, callId, agent: as, tool: "bash", input: { command } },
  });
  await agent.tools.callTool(bash("done", "echo done", "free"));
  await agent.tools.callTool(bash("big", "seq 20000", "free"));
  for (const [callId, reply] of [
    ["rejected", PermissionReply.REJECT],
    ["granted", PermissionReply.ALWAYS],
  ] as const) {
    const { permissions } = await agent.tools.callTool({ ...bash(callId, `mkdir ${callId}`, "build"), waitMs: 2_000 });
    for (const { id } of permissions)
      await person.permissions.respondToPermission({ sessionId, permissionId: id, reply });
    await agent.tools.callTool(bash(callId, `mkdir ${callId}`, "build"));
  }
  await agent.tools.callTool({ ...bash("waits", "mkdir waited", "build"), waitMs: 2_000 });
  await agent.tools.callTool({ ...bash("runs", "sleep 60", "free"), waitMs: 2_000 });
  const { parts } = await agent.tools.listToolParts({ sessionId });
  const { session } = await agent.sessions.getSession({ sessionId });
  const { permissions } = await person.permissions.listPermissions({ sessionId });
  const events: SessionEvent[] = [];
  for await (const { event } of agent.tools.watchSession({ sessionId })) {
    if (event) events.push(event);
    if (event?.seq === session?.lastSeq) break;
  }
  return {
    ...{
      sessionId,
      storeId: (await agent.tools.getServerInfo({})).storeId,
      permissionIds: permissions.map(({ id }) => id),
    },
    parts: parts.map((part) => toJson(ToolPartSchema, part)),
    events: events.map((event) => toJson(SessionEventSchema, event)),
    grants: (await person.permissions.listGrants({})).grants.map(({ id }) => id),
  };
}

/** A store with a guard would be taken for a copy. */
function dropGuard(data: string): void {
  const db = new DatabaseSync(join(data, "toolgate.sqlite"));
  db.exec("DELETE FROM meta WHERE key = 'guard'; VACUUM");
  db.close();
}
