import { chmodSync, chownSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { findAgentUser } from "../../src/cli/connect/agent-user.ts";
import { applyChanges } from "../../src/cli/connect/file-change.ts";

const agent = { name: "agent", uid: 61_020, gid: 61_020, home: "/", env: {} };

function newDirectory(owner: number): string {
  const directory = mkdtempSync(join(tmpdir(), "toolgate-agent-user-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  chmodSync(directory, 0o755);
  chownSync(directory, owner, owner);
  return directory;
}

test("root writes an agent's files as the agent's user, and nothing that this user could not write", () => {
  const [own, roots] = [newDirectory(agent.uid), newDirectory(0)];
  const write = (path: string) => applyChanges([{ path, before: undefined, after: "x", isSecret: true }], agent);
  write(join(own, "token"));
  expect(statSync(join(own, "token"))).toMatchObject({ uid: agent.uid, gid: agent.gid, mode: 0o100600 });
  symlinkSync(roots, join(own, "elsewhere"));
  expect(() => write(join(own, "elsewhere/token"))).toThrow("EACCES");
  writeFileSync(join(roots, "after"), "root again");
  expect(statSync(join(roots, "after")).uid).toBe(0);
});

test("root must say whose agent it connects", () => {
  expect(() => findAgentUser(undefined, { env: { SUDO_USER: "ann" } })).toThrow("root would connect the agent of root");
  expect(() => findAgentUser("no-such-user", { env: {} })).toThrow("there is no user no-such-user on this machine");
  expect(findAgentUser("root", { env: { SUDO_USER: "ann", HOME: "/root" } })).toMatchObject({ uid: 0, home: "/root" });
});
