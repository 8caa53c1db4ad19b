import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { SourceService } from "../gen/opencode/tool/v1/source_service_pb.ts";
import {
  bytesByGrpc,
  callByConnect,
  callByGrpc,
  callByMcp,
  callByModernMcp,
  callNamed,
  callOnStream,
  executeByGrpc,
  openSession,
  type Protocol,
} from "./echoes.ts";
import { createHttp2Client } from "./http2-client.ts";
import type { Echo, Target } from "./load.ts";
import type { Processes } from "./processes.ts";
import { startToolgate, type Toolgate } from "./toolgate.ts";

/** One line of the comparison. */
export interface Competitor {
  /** The name that `--profile` takes. */
  readonly key: string;
  readonly label: string;
  /** Starts a separate server and connects to it; `flags` are for node. */
  start(processes: Processes, flags?: readonly string[]): Promise<Target>;
}

/** The service, by each way to call it; the control is the first one again. */
export const ours: readonly Competitor[] = [
  toolgate("ours-call", "Toolgate, CallTool, Connect", overSession(callByConnect)),
  toolgate("ours-control", "Toolgate, CallTool, Connect, the control", overSession(callByConnect)),
  toolgate("ours-grpc", "Toolgate, CallTool, gRPC", overSession(callByGrpc)),
  toolgate("ours-execute", "Toolgate, ExecuteTool, gRPC stream", overSession(executeByGrpc)),
  toolgate("ours-stream", "Toolgate, StreamTools", overSession(callOnStream)),
  toolgate("ours-mcp", "Toolgate, `/mcp`", async ({ server }) =>
    callByModernMcp(`${server.url}/mcp`, { authorization: "Bearer caller-token-for-tests" }),
  ),
  toolgate("ours-upstream", "Toolgate, a tool of an MCP server, CPU of Toolgate alone", callUpstream),
  toolgate("ours-file", "Toolgate, a tool file in its process", callFile),
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
  peer("mcp-2", "MCP SDK 2, Streamable HTTP, events", "mcp-2.ts", async (url) => callByModernMcp(url)),
];

type Open = (service: Toolgate, processes: Processes) => Promise<Echo>;

function toolgate(key: string, label: string, open: Open): Competitor {
  return {
    key,
    label,
    async start(processes, flags = []) {
      const rules = 'up_echo = "allow"\nmirror = "allow"\n';
      const settings = key === "ours-upstream" ? await upstreamSettings(processes) : "";
      const service = await startToolgate(processes, { name: key, flags, rules, settings });
      return { pids: [service.server.pid], echo: await open(service, processes) };
    },
  };
}

function overSession(protocol: Protocol): Open {
  return async ({ connect }) => {
    const client = connect("caller");
    return protocol(client, await openSession(client));
  };
}

/** Starts the server whose tool is called through ours. */
async function upstreamSettings(processes: Processes): Promise<string> {
  const { url } = await processes.start([join(import.meta.dirname, "servers/mcp.ts")]);
  return `[mcp.up]\nurl = "${url}"\ntrusted = true\n`;
}

async function callUpstream({ connect }: Toolgate): Promise<Echo> {
  const [client, approver] = [connect("caller"), connect("approver-1")];
  let digest = "";
  while (digest === "") {
    await pause(50);
    const { sources } = await approver.connect(SourceService.method.listSources, {});
    digest = sources.find(({ name }) => name === "up")?.digest ?? "";
  }
  await approver.connect(SourceService.method.acceptSource, { name: "up", digest });
  return callNamed("up_echo")(client, await openSession(client));
}

async function callFile({ connect }: Toolgate, { folder }: Processes): Promise<Echo> {
  const tools = join(folder, "ours-file/tool");
  const file = `export default { description: "Returns a text.", args: { text: { type: "string" } }, execute: ({ text }) => text };`;
  await mkdir(tools, { recursive: true });
  await writeFile(join(tools, "mirror.ts"), file);
  const client = connect("caller");
  return callNamed("mirror")(client, await openSession(client));
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
