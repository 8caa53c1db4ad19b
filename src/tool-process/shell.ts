import { spawn } from "node:child_process";

/** The outcome of a command, with the names of Bun's shell. */
class ShellOutput {
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly exitCode: number;
  constructor(stdout: Buffer, stderr: Buffer, exitCode: number) {
    this.stdout = stdout;
    this.stderr = stderr;
    this.exitCode = exitCode;
  }
  text = () => this.stdout.toString();
  json = (): unknown => JSON.parse(this.text());
  bytes = () => new Uint8Array(this.stdout);
  arrayBuffer = () => this.bytes().buffer;
  blob = () => new Blob([this.bytes()]);
}

/** A command that ended with another exit code than 0. */
class ShellError extends Error {
  override name = "ShellError";
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  readonly exitCode: number;
  constructor(command: string, { stdout, stderr, exitCode }: ShellOutput) {
    super(`Failed with exit code ${exitCode}: ${command}\n${stderr.toString().slice(0, 2_000)}`.trim());
    this.stdout = stdout;
    this.stderr = stderr;
    this.exitCode = exitCode;
  }
}

interface ShellOptions {
  cwd?: string | undefined;
  env?: Readonly<Record<string, string | undefined>> | undefined;
  throws: boolean;
}

/** A command that starts when it is awaited, or in the next turn. */
class ShellPromise implements PromiseLike<ShellOutput> {
  readonly #command: string;
  readonly #options: ShellOptions;
  #running: Promise<ShellOutput> | undefined;
  constructor(command: string, options: ShellOptions) {
    this.#command = command;
    this.#options = { ...options };
  }
  cwd(directory: string) {
    this.#options.cwd = directory;
    return this;
  }
  env(variables: ShellOptions["env"]) {
    this.#options.env = variables;
    return this;
  }
  /** Output is never echoed here. */
  quiet() {
    return this;
  }
  nothrow() {
    return this.throws(false);
  }
  throws(isThrown: boolean) {
    this.#options.throws = isThrown;
    return this;
  }
  run() {
    this.#running ??= runCommand(this.#command, this.#options);
    return this.#running;
  }
  text = async () => (await this.run()).text();
  json = async () => (await this.run()).json();
  bytes = async () => (await this.run()).bytes();
  arrayBuffer = async () => (await this.run()).arrayBuffer();
  blob = async () => (await this.run()).blob();
  async *lines() {
    yield* (await this.text()).split("\n");
  }
  // biome-ignore lint/suspicious/noThenProperty: Bun's shell returns a promise, which starts its command only when awaited
  then: Promise<ShellOutput>["then"] = (resolved, rejected) => this.run().then(resolved, rejected);
  catch: Promise<ShellOutput>["catch"] = (rejected) => this.run().catch(rejected);
  finally: Promise<ShellOutput>["finally"] = (ended) => this.run().finally(ended);
}

/**
 * Creates the part of Bun's shell `$` that plugins use: commands with escaped values, run by sh, with `cwd`, `env`, `quiet`,
 * `nothrow`, `text`, `json`, `lines`, `bytes`. Redirects to objects of the program, and `$.Shell`, need Bun.
 */
export function createShell() {
  const defaults: ShellOptions = { throws: true };
  const shell = (strings: TemplateStringsArray, ...values: unknown[]) =>
    new ShellPromise(
      strings.raw.reduce((line, text, index) => line + escapeValue(values[index - 1]) + text),
      defaults,
    );
  return Object.assign(shell, {
    escape: escapeText,
    cwd: (directory?: string) => Object.assign(defaults, { cwd: directory }) && shell,
    env: (variables?: ShellOptions["env"]) => Object.assign(defaults, { env: variables }) && shell,
    nothrow: () => Object.assign(defaults, { throws: false }) && shell,
    throws: (isThrown: boolean) => Object.assign(defaults, { throws: isThrown }) && shell,
    ShellError,
    ShellPromise,
    ShellOutput,
  });
}

function escapeValue(value: unknown): string {
  if (Array.isArray(value)) return value.map(escapeValue).join(" ");
  if (typeof value === "object" && value !== null) {
    if ("raw" in value) return String(value.raw);
    if (!(value instanceof Date || value instanceof URL || value instanceof ShellOutput))
      throw new TypeError(
        "$ of a tool process takes texts, numbers, lists and { raw }: for files and streams it needs Bun",
      );
  }
  return escapeText(value instanceof ShellOutput ? value.text() : String(value));
}

/** Writes a text as one word of the shell. */
const escapeText = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

function runCommand(command: string, { cwd, env, throws }: ShellOptions): Promise<ShellOutput> {
  const { promise, resolve, reject } = Promise.withResolvers<ShellOutput>();
  const child = spawn("/bin/sh", ["-c", command], {
    stdio: ["ignore", "pipe", "pipe"],
    ...(cwd !== undefined && { cwd }),
    ...(env && { env }),
  });
  const stdout: Buffer[] = [];
  const stderr: Buffer[] = [];
  child.stdout.on("data", (chunk: Buffer) => void stdout.push(chunk));
  child.stderr.on("data", (chunk: Buffer) => void stderr.push(chunk));
  child.on("error", reject);
  child.on("close", (code) => {
    const output = new ShellOutput(Buffer.concat(stdout), Buffer.concat(stderr), code ?? 128);
    if (throws && output.exitCode !== 0) reject(new ShellError(command, output));
    else resolve(output);
  });
  return promise;
}
