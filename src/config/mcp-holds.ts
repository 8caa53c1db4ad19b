import type { Settings } from "./file.ts";

/** Times for which calls of an MCP client are held before the client gets an answer that is not their result. */
export interface McpHoldTime {
  /** Name that the client reports about itself; empty for all clients that are not named. */
  readonly client: string;
  readonly httpMs: number;
  readonly stdioMs: number;
}

/** Reads the times. Most clients abandon a request after 60 s, so that the default is below that. */
export function readMcpHolds({
  mcp_hold_ms: otherMs = 50_000,
  mcp_hold: named = {},
}: Pick<Settings, "mcp_hold_ms" | "mcp_hold">): McpHoldTime[] {
  const known: Readonly<Record<string, { ms?: number | undefined; stdio_ms?: number | undefined }>> = {
    ...knownClients,
    ...named,
  };
  const clients = Object.entries(known).map(([client, { ms = otherMs, stdio_ms: stdioMs = ms }]) => ({
    client,
    httpMs: ms,
    stdioMs,
  }));
  return [{ client: "", httpMs: otherMs, stdioMs: otherMs }, ...clients];
}

/** Clients that wait for longer or shorter than most. */
const knownClients = { "claude-code": { stdio_ms: 1_800_000 }, "openai-agents": { ms: 4_000 } };
