import type { Readable, Writable } from "node:stream";
import { type JSONRPCMessage, ReadBuffer, serializeMessage, type Transport } from "@modelcontextprotocol/client";
import { createLastWords } from "../../core/last-words.ts";
import { within } from "../../core/within.ts";

/** A started program. */
export interface McpProgram {
  stdin: Writable;
  stdout: Readable;
  stderr: Readable;
  /** Resolves with a description of its end, such as `exit code 1`. */
  exited: Promise<string>;
  kill(): Promise<void>;
}

/** Speaks MCP with a program over its stdin and stdout, a line for each message. Of lines that are no message only the fact is retained. */
export class ProgramTransport implements Transport {
  onclose?: () => void;
  onerror?: (error: Error) => void;
  onmessage?: Transport["onmessage"];
  /**
   * The library recognizes a program by these names. It initializes one that ignores unknown methods the former way, instead of
   * giving it up.
   */
  readonly stderr = null;
  readonly pid = null;
  readonly #start: () => Promise<McpProgram>;
  readonly #words = createLastWords();
  #program: McpProgram | undefined;
  #isClosed = false;
  #endReason: string | undefined;
  /** Messages that the program has not read. */
  #unread = 0;
  /** Delivery of the messages so far. */
  #delivered = Promise.resolve();

  constructor(start: () => Promise<McpProgram>) {
    this.#start = start;
  }

  async start(): Promise<void> {
    // The library starts a program again that ended while it asked for its version.
    if (this.#isClosed) throw new Error("the connection was closed");
    const program = await this.#start();
    this.#program = program;
    if (this.#isClosed) return await this.close();
    const buffer = new ReadBuffer({ maxBufferSize: maxMessageBytes });
    // Each write reports its failure.
    program.stdin.on("error", () => undefined);
    program.stderr.setEncoding("utf8").on("data", this.#words.add);
    program.stdout.on("data", (chunk: Buffer) => {
      try {
        buffer.append(chunk);
      } catch (error) {
        // A line without end.
        this.#words.add(String(error));
        void program.kill();
        return;
      }
      this.#read(buffer);
    });
    program.stdout.once("end", () => void this.#endWithoutStdout(program));
    void program.exited.then((how) => {
      this.#words.add(`\n${how}`);
      this.onclose?.();
    });
  }

  /** Ends a program that has closed its stdout and runs on: it cannot answer any more, and is started again. */
  async #endWithoutStdout({ exited, kill }: McpProgram): Promise<void> {
    const isExiting = await within(
      exitMs,
      exited.then(() => true),
      () => false,
    );
    if (isExiting) return;
    this.#words.add("\n(it closed stdout, so it was ended)");
    await kill();
  }

  #read(buffer: ReadBuffer): void {
    for (;;) {
      try {
        const message = buffer.readMessage();
        if (message === null) return;
        // The library handles notifications a turn later, and results at once: progress must not lose to the result behind it.
        this.#delivered = this.#delivered.then(() => this.onmessage?.(message)).catch(() => this.#addNoMessage());
      } catch {
        this.#addNoMessage();
      }
    }
  }

  /** Notes a line that is no message: programs print for people, too. */
  #addNoMessage(): void {
    this.#words.add("\n(a line on stdout that is no message)");
  }

  /** Returns the end of what the program printed for people, and how it ended. */
  lastWords(): string {
    return this.#words.text();
  }

  /** Returns why it was ended here; undefined if it ended by itself. */
  endReason(): string | undefined {
    return this.#endReason;
  }

  async send(message: JSONRPCMessage): Promise<void> {
    const { stdin, kill } = this.#program ?? {};
    if (stdin === undefined || stdin.destroyed) throw new Error("the program does not run");
    if (this.#unread >= maxUnread) {
      // Answers to a program that sends requests without end would fill the memory.
      if (this.#endReason === undefined) void kill?.();
      this.#endReason = `it was ended, since it did not read ${maxUnread} messages, such as answers to its requests`;
      throw new Error(this.#endReason);
    }
    this.#unread += 1;
    await new Promise<void>((resolve, reject) => {
      stdin.write(serializeMessage(message), (error) => {
        this.#unread -= 1;
        if (error) reject(error);
        else resolve();
      });
    });
  }

  async close(): Promise<void> {
    const program = this.#program;
    this.#isClosed = true;
    this.#program = undefined;
    program?.stdin.end();
    await program?.kill();
  }
}

/** Time in which a program ends by itself after it has closed its stdout. */
const exitMs = 500;
/** Maximum number of messages that a program leaves in its stdin. */
const maxUnread = 2_000;
/** Maximum size of a message of a server. */
export const maxMessageBytes = 16 * 1024 * 1024;
