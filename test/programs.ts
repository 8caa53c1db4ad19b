import { spawnSync } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Programs of Debian's that the tests use as they are, by package. */
const programs = [
  ["redis-server", "redis-server"],
  ["openssl", "openssl"],
  ["script", "bsdutils"],
  ["faketime", "faketime"],
  ["bwrap", "bubblewrap"],
  ["python3", "python3"],
  ["curl", "curl"],
  ["ssh", "openssh-client"],
  ["setfacl", "acl"],
  ["chromium-headless-shell", "chromium-headless-shell"],
  ["zsh", "zsh"],
  ["fish", "fish"],
] as const;

/** Before all tests. */
export default function setup(): void {
  needPrograms(programs);
}

/** Installs what is missing, by program and package, where that is ours to do (root on Debian), else says which line does. */
export function needPrograms(programs: readonly (readonly [program: string, name: string])[]): void {
  const missing = programs.filter(([program]) => !isThere(program)).map(([, name]) => name);
  if (missing.length === 0) return;
  const line = `apt-get install -y ${missing.join(" ")}`;
  if (process.getuid?.() !== 0 || !isThere("apt-get")) throw new Error(`the tests need more programs: ${line}`);
  console.log(`the tests need more programs, which are installed now: ${line}`);
  // Two runs of tests at the same time install one after the other: apt fails where another one holds its locks.
  const lock = join(tmpdir(), "toolgate-tests-apt.lock");
  for (const step of ["apt-get update -q", line]) {
    const { status } = spawnSync("flock", [lock, "sh", "-c", step], {
      stdio: ["ignore", "ignore", "inherit"],
      env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" },
    });
    if (status !== 0) throw new Error(`it failed with status ${status}: ${step}`);
  }
}

function isThere(program: string): boolean {
  return spawnSync("sh", ["-c", `command -v ${program}`]).status === 0;
}
