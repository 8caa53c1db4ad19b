import type { Command } from "commander";
import { watchToolList } from "../../agents/mcp/list-tools.ts";
import { createMcpServer, serveMcpOverStdio, stdioAborts } from "../../agents/mcp/mcp-server.ts";
import { type McpClient, type McpSession, openMcpSession } from "../../agents/mcp/mcp-session.ts";
import { reasonOf, type ToolgateApi } from "../../agents/mcp/toolgate-api.ts";
import { createUncollectedCalls } from "../../agents/mcp/uncollected-calls.ts";
import { isLoopback } from "../../client/find-token.ts";
import { isUnreachable } from "../../client/resume-stream.ts";
import { newClientId, withScreen } from "../command.ts";
import { connectServer, findServerToken, type ServerConnection } from "../connection/connection.ts";
import { readCertificates, type ServerOptions, serverUrl } from "../connection/server-address.ts";
import type { CliContext } from "../context.ts";

interface McpCommandOptions {
  workspace?: string;
  session?: string;
}

/** Defines `toolgate mcp`. */
export function defineMcp(command: Command, context: CliContext): void {
  command
    .description(
      "Serve the tools of a server to an MCP client, over stdin and stdout. It starts no service: while none runs, every request of the client fails and says so",
    )
    .option(
      "--workspace <name>",
      "the workspace (default: the token's only one, otherwise the one that holds the current directory)",
    )
    .option("--session <id>", "the session of all calls (default: a new one)")
    .addHelpText("after", examples)
    .action((options: McpCommandOptions) =>
      withScreen(context, command, (_screen, server) => serveMcp({ ...options, ...server }, context)),
    );
}

/** Serves the client until it closes stdin. */
async function serveMcp(options: McpCommandOptions & ServerOptions, { io, version }: CliContext): Promise<void> {
  const url = serverUrl(options, io.env);
  const certificates = readCertificates(options, io.env);
  const api = reconnectingApi(() => connectServer(url, findServerToken("caller", options, io.env), certificates));
  const sessionId = options.session ?? newClientId("ses");
  const [place, isLocal] = [process.cwd(), isLoopback(url)];
  let opened: Promise<McpSession> | undefined;
  const sessionOf = (client: McpClient) => {
    opened ??= openMcpSession(api, {
      sessionId,
      client,
      transport: "stdio",
      workspace: options.workspace,
      place,
      isLocal,
    });
    opened.catch(() => {
      opened = undefined;
    });
    return opened;
  };
  const uncollected = createUncollectedCalls()("");
  const ending = new AbortController();
  await serveMcpOverStdio((era) => {
    let isWatched = false;
    const server = createMcpServer({
      ...{ api, era, version, url, uncollected, aborts: stdioAborts },
      async sessionOf(client) {
        const session = () => sessionOf(client);
        if (!isWatched)
          void watchToolList({ api, session, onChange: () => server.sendToolListChanged() }, ending.signal);
        isWatched = true;
        return await session();
      },
    });
    return server;
  }, io);
  ending.abort();
  api.close();
}

/**
 * Connects again, with the token as it is then, after a service was not there or did not know the token: its first start creates
 * the token.
 */
function reconnectingApi(open: () => ServerConnection): ToolgateApi & { close(): void } {
  let current: ServerConnection | undefined;
  async function use<T>(request: (connection: ServerConnection) => Promise<T>): Promise<T> {
    current ??= open();
    const connection = current;
    try {
      return await request(connection);
    } catch (error) {
      if (current === connection && (isUnreachable(error) || reasonOf(error) === "UNAUTHENTICATED")) {
        current = undefined;
        connection.close();
      }
      throw error;
    }
  }
  return {
    tools: {
      getServerInfo: (...request) => use(({ tools }) => tools.getServerInfo(...request)),
      listTools: (...request) => use(({ tools }) => tools.listTools(...request)),
      callTool: (...request) => use(({ tools }) => tools.callTool(...request)),
      cancelTool: (...request) => use(({ tools }) => tools.cancelTool(...request)),
      getToolPart: (...request) => use(({ tools }) => tools.getToolPart(...request)),
      readToolOutput: (...request) => use(({ tools }) => tools.readToolOutput(...request)),
      async *watchSession(...request) {
        current ??= open();
        yield* current.tools.watchSession(...request);
      },
    },
    sessions: { createSession: (...request) => use(({ sessions }) => sessions.createSession(...request)) },
    close: () => current?.close(),
  };
}

const examples = `
Examples:
  claude mcp add toolgate -- npx toolgate mcp
  toolgate mcp --server https://tools.example:7420 --token-file ~/.toolgate-token --workspace shop`;
