import type { JsonObject } from "@bufbuild/protobuf";
import {
  type CallToolResult,
  Client,
  type ElicitRequest,
  type ElicitResult,
  type Tool as OfferedTool,
  type Progress,
  type Transport,
} from "@modelcontextprotocol/client";
import packageJson from "../../../package.json" with { type: "json" };
import { within } from "../../core/within.ts";
import type { Resource } from "./mcp-result.ts";

/** Callbacks for what the server sends while a call runs. */
export interface McpCallListener {
  progress(progress: Progress): void;
  /** Answers a question of the server. */
  question(request: ElicitRequest["params"]): Promise<ElicitResult>;
}

/** A connection to an MCP server. */
export interface McpConnection {
  /** Lists the tools that the server offers now. */
  list(): Promise<OfferedTool[]>;
  /** Calls a tool. It has no time limit; the signal cancels the call at the server, too. */
  call(
    tool: { name: string; arguments: JsonObject },
    listener: McpCallListener,
    signal: AbortSignal,
  ): Promise<CallToolResult>;
  read(uri: string, signal: AbortSignal): Promise<Resource[]>;
  close(): Promise<void>;
}

/** The ways to reach a server. */
export interface McpTransports {
  transport: Transport;
  /** That of a former version of MCP, for servers that refuse the other one. */
  olderTransport?: Transport;
}

/** Callbacks of a connection. */
interface ConnectionEvents {
  /** The server announces other tools. */
  changed(): void;
  /** The connection ends. */
  closed(): void;
  /** A question of the server was refused. */
  refused(reason: string): void;
}

/** Connects to a server, by the older transport if it refuses the other one. */
export async function connectMcp(
  { transport, olderTransport }: McpTransports,
  events: ConnectionEvents,
): Promise<McpConnection> {
  try {
    return await connectOver(transport, events);
  } catch (error) {
    if (olderTransport === undefined) throw error;
    await transport.close();
    // If both fail, the first failure is that of the server as it is configured.
    return await connectOver(olderTransport, events).catch(() => {
      throw error;
    });
  }
}

async function connectOver(
  transport: Transport,
  { changed, closed, refused }: ConnectionEvents,
): Promise<McpConnection> {
  const client = new Client(
    { name: "toolgate", version: packageJson.version },
    {
      capabilities: { elicitation: { form: {}, url: {} } },
      versionNegotiation: { mode: "auto", probe: { timeoutMs: probeMs } },
      listChanged: { tools: { autoRefresh: false, onChanged: () => changed() } },
      listMaxPages: maxPages,
      // Results are checked against the accepted definition instead.
      jsonSchemaValidator: {
        getValidator: () => (data) => ({ valid: true, data: data as never, errorMessage: undefined }),
      },
    },
  );
  const running = new Set<McpCallListener>();
  client.setRequestHandler("elicitation/create", async ({ params }) => {
    const [listener, ...others] = running;
    // The request does not say which call it belongs to.
    if (listener !== undefined && others.length === 0) return await listener.question(params);
    refused(`it asked a question while ${running.size} calls ran, so it is not known whose question it is`);
    return { action: "cancel" };
  });
  // Its time limits are those of requests: a transport that does not start, or takes no notification, has none.
  await within(maxConnectMs, client.connect(transport, { timeout: connectMs }));
  client.onclose = closed;
  return {
    list: async () => (await client.listTools(undefined, { timeout: listMs, cacheMode: "refresh" })).tools,
    async call(tool, listener, signal) {
      running.add(listener);
      try {
        return await client.callTool(tool, { signal, timeout: noTimeout, onprogress: listener.progress });
      } finally {
        running.delete(listener);
      }
    },
    read: async (uri, signal) => (await client.readResource({ uri }, { signal, timeout: listMs })).contents,
    close: () => client.close(),
  };
}

/** A program may take seconds to start, such as one that npx downloads; one that ignores the probe is initialized after this time. */
const probeMs = 10_000;
const connectMs = 10_000;
const maxConnectMs = 60_000;
const listMs = 10_000;
const maxPages = 64;
/** The longest time of a timer. */
const noTimeout = 2 ** 31 - 1;
