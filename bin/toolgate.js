#!/usr/bin/env node
// Starts the program. On a Node that is too old for it, it runs the program with the Node of an optional dependency.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { fileURLToPath } from "node:url";

const needed = [24, 12];
const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
const source = new URL("../src/main.ts", import.meta.url);
const program = existsSync(source) ? source : new URL("../dist/main.js", import.meta.url);

const launcher = process.env.TOOLGATE_LAUNCHER_FD;
delete process.env.TOOLGATE_LAUNCHER_FD;

if (launcher !== undefined || major > needed[0] || (major === needed[0] && minor >= needed[1])) {
  if (launcher !== undefined) endWithLauncher(Number(launcher));
  await import(program.href);
} else {
  const node = findNode();
  if (node === undefined) {
    console.error(
      `toolgate needs Node ${needed.join(".")} or newer, this is ${process.versions.node}: install it from nodejs.org`,
    );
    process.exitCode = 1;
  } else runWith(node);
}

/** Ends this process as SIGTERM does once the process that started it for a newer Node has ended. */
function endWithLauncher(fd) {
  const end = () => process.kill(process.pid, "SIGTERM");
  new Socket({ fd, readable: true, writable: false }).once("error", end).once("end", end).resume().unref();
}

/** The Node that npm installed beside this package, on the machines that it exists for. */
function findNode() {
  try {
    return createRequire(import.meta.url).resolve(`node-${process.platform}-${process.arch}/bin/node`);
  } catch {
    return undefined;
  }
}

/**
 * Runs this file with another Node, passes signals on, and ends as it ends. The system closes the pipe to the child however this
 * process ends, also by SIGKILL.
 */
function runWith(node) {
  const child = spawn(node, ["--max-semi-space-size=4", fileURLToPath(import.meta.url), ...process.argv.slice(2)], {
    stdio: ["inherit", "inherit", "inherit", "pipe"],
    env: { ...process.env, TOOLGATE_LAUNCHER_FD: "3" },
  });
  for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  // A terminal sends Ctrl-C to the child, too, and a second one would end it at once.
  process.on("SIGINT", () => process.stdin.isTTY || child.kill("SIGINT"));
  child.on("exit", (code, signal) => {
    if (signal === null) process.exit(code ?? 1);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  });
}
