import type { Readable, Writable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import type { AnyMessage, Stream } from "@agentclientprotocol/sdk";
import { isObject } from "../../../core/json.ts";
import { AgentFailure } from "./acp-host.ts";

/** Bounds on what the program of an agent sends in one run. */
export interface AgentTraffic {
  lineBytes: number;
  /** Sum of all lines. */
  bytes: number;
  messages: number;
  /** More messages than this in a second wait, so that a flood does not take the service's time. */
  messagesPerSecond: number;
  /** Requests of the agent without a response. */
  openRequests: number;
  /** Lines that are no message, such as what a program prints by mistake. They are dropped. */
  strayLines: number;
}

/** The bounds of every run. */
export const agentTraffic: AgentTraffic = {
  lineBytes: 8_388_608,
  bytes: 268_435_456,
  messages: 1_000_000,
  messagesPerSecond: 2_000,
  openRequests: 64,
  strayLines: 1_000,
};

/**
 * Connects the SDK to a program over its stdin and stdout. Only messages reach the SDK: it would answer and log other lines, which
 * a broken agent could use to fill memory and log. A program that exceeds a bound ends the stream with `AgentFailure`.
 */
export function agentStream(
  { stdin, stdout }: { stdin: Writable; stdout: Readable },
  { traffic = agentTraffic, onMessage }: { traffic?: AgentTraffic; onMessage: () => void },
): Stream {
  const ours = new Set<unknown>();
  let openCount = 0;
  let strayCount = 0;

  function isExpected(message: unknown): message is AnyMessage {
    if (!isObject(message) || message.jsonrpc !== "2.0") return false;
    if (typeof message.method !== "string") return ours.delete(message.id);
    if ("id" in message && ++openCount > traffic.openRequests)
      throw new AgentFailure(`it sent more than ${traffic.openRequests} requests without waiting for a response`);
    return true;
  }

  async function* messages(): AsyncGenerator<AnyMessage> {
    const pace = createPace(traffic);
    for await (const line of linesOf(stdout, traffic)) {
      const message = parsed(line);
      if (isExpected(message)) {
        onMessage();
        await pace();
        yield message;
      } else if (line.trim() !== "" && ++strayCount > traffic.strayLines) {
        throw new AgentFailure(`it sent more than ${traffic.strayLines} lines that are no messages of the protocol`);
      }
    }
  }

  const writable = new WritableStream<AnyMessage>({
    async write(message) {
      if ("method" in message && "id" in message) ours.add(message.id);
      else if (!("method" in message)) openCount -= 1;
      const line = `${JSON.stringify(message)}\n`;
      await new Promise<void>((resolve, reject) => {
        stdin.write(line, (error) => (error == null ? resolve() : reject(error)));
      });
    },
  });
  return { readable: ReadableStream.from(messages()), writable };
}

/** Splits the output into lines. */
async function* linesOf(stdout: Readable, { lineBytes, bytes }: AgentTraffic): AsyncGenerator<string> {
  let parts: Buffer[] = [];
  let [length, total] = [0, 0];
  for await (const chunk of stdout as AsyncIterable<Buffer>) {
    total += chunk.length;
    if (total > bytes) throw new AgentFailure(`it sent more than ${bytes} bytes`);
    for (let at = 0; at < chunk.length; ) {
      const newline = chunk.indexOf(10, at);
      const part = chunk.subarray(at, newline === -1 ? chunk.length : newline);
      length += part.length;
      if (length > lineBytes) throw new AgentFailure(`it sent a line of more than ${lineBytes} bytes`);
      parts.push(part);
      if (newline === -1) break;
      yield Buffer.concat(parts).toString();
      [parts, length] = [[], 0];
      at = newline + 1;
    }
  }
}

/** Creates a function that returns at once, or after a pause if too many messages came within a second. */
function createPace({ messages, messagesPerSecond }: AgentTraffic): () => Promise<void> {
  let [second, count, total] = [0, 0, 0];
  return async () => {
    total += 1;
    if (total > messages) throw new AgentFailure(`it sent more than ${messages} messages`);
    const now = Math.floor(performance.now() / 1_000);
    if (now !== second) [second, count] = [now, 0];
    count += 1;
    if (count > messagesPerSecond) await delay((now + 1) * 1_000 - performance.now());
  };
}

function parsed(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
