import { join } from "node:path";
import {
  bytesByGrpc,
  callByConnect,
  callByGrpc,
  callByMcp,
  executeByGrpc,
  openSession,
  type Protocol,
} from "./echoes.ts";
import { createHttp2Client } from "./http2-client.ts";
import type { Echo, Target } from "./load.ts";
import type { Processes } from "./processes.ts";
import { startToolgate } from "./toolgate.ts";

/** One line of the comparison. */
export interface Competitor {
  /** The name that `--profile` takes. */
  readonly key: string;
  readonly label: string;
  /** Starts a separate server and connects to it; `flags` are for node. */
  start(processes: Processes, flags?: readonly string[]): Promise<Target>;
}

/** One of ours, and the key of the peer that does no more than speak the same protocol. */
export interface Ours extends Competitor {
  readonly bare: string;
}

/** The service, by each way to call it. */
export const ours: readonly Ours[] = [
  toolgate("ours-call", "Toolgate, CallTool, Connect", callByConnect, "connect-call"),
  toolgate("ours-grpc", "Toolgate, CallTool, gRPC", callByGrpc, "connect-grpc"),
  toolgate("ours-stream", "Toolgate, ExecuteTool, gRPC stream", executeByGrpc, "connect-stream"),
];

/** The peers: none has policy, events or tokens, and only those with SQLite store anything. */
export const peers: readonly Competitor[] = [
  peer("connect-call", "connect-node, unary, Connect", "connect.ts", overHttp2(callByConnect)),
  peer("connect-grpc", "connect-node, unary, gRPC", "connect.ts", overHttp2(callByGrpc)),
  peer("connect-stream", "connect-node, stream of 3, gRPC", "connect.ts", overHttp2(executeByGrpc)),
  peer("durable-call", "connect-node and SQLite, Connect", "durable.ts", overHttp2(callByConnect)),
  peer("durable-grpc", "connect-node and SQLite, gRPC", "durable.ts", overHttp2(callByGrpc)),
  peer("grpc-js", "grpc-js, unary", "grpc-js.ts", overHttp2(callByGrpc)),
  peer("http2", "node:http2, the same bytes back", "http2.ts", overHttp2(bytesByGrpc)),
  peer("mcp", "MCP SDK, Streamable HTTP, JSON", "mcp.ts", callByMcp),
];

function toolgate(key: string, label: string, protocol: Protocol, bare: string): Ours {
  return {
    key,
    label,
    bare,
    async start(processes, flags = []) {
      const { server, connect } = await startToolgate(processes, { name: key, flags });
      const client = connect("caller");
      return { pids: [server.pid], echo: protocol(client, await openSession(client)) };
    },
  };
}

function peer(key: string, label: string, file: string, open: (url: string) => Promise<Echo>): Competitor {
  return {
    key,
    label,
    async start(processes, flags = []) {
      const server = await processes.start([...flags, join(import.meta.dirname, "servers", file), processes.folder]);
      return { pids: [server.pid], echo: await open(server.url) };
    },
  };
}

function overHttp2(protocol: Protocol): (url: string) => Promise<Echo> {
  return async (url) => protocol(createHttp2Client(url), "ses_bench");
}
