import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import type { PeerProof } from "../../client/verified-socket.ts";

/** What a connector knows about its service, from the file that `toolgate connect` wrote. */
export interface ConnectorRecord extends PeerProof {
  server?: string;
  tokenFile?: string;
  /** The file of the authority that signed the certificate, PEM. */
  ca?: string;
  /** The random name under which the agent knows our MCP server. */
  mcpName?: string;
}

/** Returns the file in which `toolgate connect` stores its record of a kind of agent. */
export function connectorRecordFile(kind: string, env: NodeJS.ProcessEnv): string {
  const configHome = env.XDG_CONFIG_HOME || join(env.HOME || homedir(), ".config");
  return join(configHome, "toolgate", "connect", `${kind}.json`);
}

/** Reads the record; fields that it lacks or that have another type are absent. Throws if the file is there but unreadable. */
export function readConnectorRecord(kind: string, env: NodeJS.ProcessEnv): ConnectorRecord {
  const file = connectorRecordFile(kind, env);
  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return {};
    throw error;
  }
  const found: Record<string, unknown> = JSON.parse(text) ?? {};
  const texts = ["server", "tokenFile", "ca", "mcpName", "certificate"] as const;
  return {
    ...Object.fromEntries(texts.flatMap((name) => (typeof found[name] === "string" ? [[name, found[name]]] : []))),
    ...(typeof found.uid === "number" && { uid: found.uid }),
  };
}
