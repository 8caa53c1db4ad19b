import { type ChildProcess, execFile, spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { Server } from "node:net";
import { text } from "node:stream/consumers";
import { promisify } from "node:util";
import type { HostPort } from "./target.ts";

/** A network namespace with nothing but its own loopback, which lives as long as its descriptors and its processes. */
export interface NetworkNamespace {
  /** Sockets that listen inside, one for each address. */
  readonly servers: readonly Server[];
  /** The program that starts another one inside, with its arguments. */
  readonly enter: readonly string[];
  /** Closes the descriptors. Programs that are inside stay there. */
  close(): void;
}

/**
 * Opens a namespace. A short-lived process makes it, listens inside and hands its sockets over. Descriptors name the namespace
 * from then on: the process ID could belong to another process by the time a command enters.
 */
export async function openNamespace(addresses: readonly HostPort[]): Promise<NetworkNamespace> {
  const isRoot = process.getuid?.() === 0;
  const holder = startHolder(addresses, isRoot);
  try {
    const { pid, servers } = await socketsOf(holder, addresses.length);
    const net = openSync(`/proc/${pid}/ns/net`, "r");
    const user = isRoot ? undefined : openSync(`/proc/${pid}/ns/user`, "r");
    const path = (descriptor: number) => `/proc/${process.pid}/fd/${descriptor}`;
    const ofUser = user === undefined ? [] : [`--user=${path(user)}`, "--preserve-credentials"];
    const enter = ["nsenter", ...ofUser, `--net=${path(net)}`, "--"];
    const close = () => {
      for (const descriptor of [net, user]) if (descriptor !== undefined) closeSync(descriptor);
    };
    await checkEntry(enter).catch((error: unknown) => {
      close();
      for (const server of servers) server.close();
      throw error;
    });
    return { servers, enter, close };
  } finally {
    holder.kill("SIGKILL");
  }
}

/** Enters a network once, since each of its commands would fail otherwise. */
async function checkEntry([program = "", ...args]: readonly string[]): Promise<void> {
  try {
    await promisify(execFile)(program, [...args, "true"]);
  } catch (cause) {
    const said = cause instanceof Error && "stderr" in cause ? String(cause.stderr).trim() : "";
    throw new Error(`commands cannot enter it by ${program}, which util-linux brings: ${said || String(cause)}`, {
      cause,
    });
  }
}

/** Listens on the addresses in its argument, and sends each socket. */
const holderProgram = `
const addresses = JSON.parse(process.argv[1]);
addresses.forEach(({ host, port }, index) => {
  const server = require("node:net").createServer();
  server.listen(port, host, () => process.send({ index, pid: process.pid }, server));
});
`;

function startHolder(addresses: readonly HostPort[], isRoot: boolean): ChildProcess {
  const channel = { NODE_CHANNEL_FD: "3", NODE_CHANNEL_SERIALIZATION_MODE: "json" };
  const args = [
    ...["--unshare-net", ...(isRoot ? [] : ["--unshare-user"])],
    // With a private /dev it would be in a second user namespace, which commands could not enter.
    ...["--die-with-parent", "--cap-drop", "ALL", "--dev-bind", "/", "/", "--clearenv"],
    ...Object.entries(channel).flatMap(([name, value]) => ["--setenv", name, value]),
    ...["--", process.execPath, "-e", holderProgram, JSON.stringify(addresses)],
  ];
  return spawn("bwrap", args, { stdio: ["ignore", "ignore", "pipe", "ipc"] });
}

function socketsOf(holder: ChildProcess, count: number): Promise<{ pid: number; servers: Server[] }> {
  const { promise, resolve, reject } = Promise.withResolvers<{ pid: number; servers: Server[] }>();
  const servers: Server[] = [];
  const errors = holder.stderr ? text(holder.stderr) : Promise.resolve("");
  holder.on("message", ({ index, pid }: { index: number; pid: number }, server: unknown) => {
    if (!(server instanceof Server)) return;
    servers[index] = server;
    if (servers.filter(Boolean).length === count) resolve({ pid, servers });
  });
  holder.once("error", reject);
  holder.once("exit", async (code, signal) => {
    reject(new Error(`no network namespace: ${(await errors).trim() || `exit ${code ?? signal}`}`));
  });
  return promise;
}
