import { closeSync, openSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import { type Argv, firstInheritedDescriptor, type LayerShare } from "./layers.ts";

/** Opens pipes of the kernel; the caller closes both descriptors. */
export interface GatePipes {
  open(): Promise<{ reader: number; writer: number }>;
}

/** Checks the mounts of a command; gets the ID of a process inside, and returns the reason why the command must not start. */
type GateCheck = (pid: number) => Promise<string | undefined>;

/**
 * Holds a command between its mounts and its start. The share has to be the first one, since its shell names the descriptors.
 * With `lines` the shell runs those after the check has passed.
 */
export async function gateShare(pipes: GatePipes, check: GateCheck, lines?: () => string): Promise<LayerShare> {
  const report = await pipes.open();
  const answer = await openBlocking(pipes).catch((error: unknown) => {
    closeSync(report.reader);
    closeSync(report.writer);
    throw error;
  });
  const open = new Set([report.writer, answer.reader, answer.writer]);
  const socket = new Socket({ fd: report.reader, readable: true, writable: false });
  let text = "";
  let isReleased = false;
  async function decide(): Promise<void> {
    const said = await verdict(text, check);
    // The command has been killed meanwhile, and the descriptor may be that of another file.
    if (isReleased) return;
    writeSync(answer.writer, `${said}\n${said === go ? (lines?.() ?? "") : ""}`);
    open.delete(answer.writer);
    // The lines end with the pipe.
    closeSync(answer.writer);
  }
  socket.setEncoding("utf8").on("data", (chunk: string) => {
    text += chunk;
    if (!text.endsWith(ready)) return;
    socket.pause();
    void decide();
  });
  return {
    files: [
      { descriptor: report.writer, option: "--info-fd", layer: "namespaces" },
      { descriptor: report.writer },
      { descriptor: answer.reader },
    ],
    script: lines ? scriptOfLines : script,
    async release() {
      isReleased = true;
      socket.destroy();
      for (const descriptor of open) closeSync(descriptor);
    },
  };
}

/** Passes two pipes to the program, as descriptors 3 and 4. The share follows those that are given, since its shell names the descriptors. */
export function pipesShare(before: readonly LayerShare[]): LayerShare {
  const first = firstInheritedDescriptor + before.flatMap(({ files = [] }) => files).length;
  const second = first + 1;
  const move = `exec 3<&${first} 4>&${second} ${first}<&- ${second}>&-`;
  return {
    files: [{ descriptor: "pipe" }, { descriptor: "pipe" }],
    ...(first !== firstInheritedDescriptor && { script: move }),
  };
}

/** Opens a pipe of which the reader waits. */
async function openBlocking(pipes: GatePipes): ReturnType<GatePipes["open"]> {
  const { reader, writer } = await pipes.open();
  try {
    return { reader: openSync(`/proc/self/fd/${reader}`, "r"), writer };
  } finally {
    closeSync(reader);
  }
}

const ready = "ready\n";
const go = "go";
/** The descriptors are those of the share's files: bubblewrap writes to 3. */
const wait = `echo ready >&4; read -r answer <&5; exec 3>&- 4>&-`;
const judge = `[ "$answer" = ${go} ] || { echo "toolgate: $answer" >&2; exit 126; }`;
const script = `${wait} 5<&-; ${judge}`;
const scriptOfLines = `${wait}; ${judge}`;

/** Makes the lines that become a command with an environment, where another one was known at the start of the shell. */
export function commandLines(argv: Argv, env: Environment, before: Environment): string {
  const gone = Object.keys(before).filter((name) => env[name] === undefined);
  const changed = Object.entries(env).filter(([name, value]) => before[name] !== value);
  return [
    "exec 5<&-",
    ...gone.map((name) => `unset ${name}`),
    ...changed.map(([name, value]) => `export ${name}=${quoted(value)}`),
    `exec ${argv.map(quoted).join(" ")}`,
    "",
  ].join("\n");
}

type Environment = Readonly<Record<string, string>>;

const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

async function verdict(text: string, check: GateCheck): Promise<string> {
  const [, pid] = /"child-pid": (\d+)/.exec(text) ?? [];
  try {
    return (await check(Number(pid)))?.replaceAll("\n", " ") ?? go;
  } catch (error) {
    return `nothing was run, since its mounts cannot be checked: ${String(error)}`;
  }
}
