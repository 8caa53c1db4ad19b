import {
  Client,
  type ClientOptions,
  StreamableHTTPClientTransport,
  type Transport,
} from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import type { Principal, Service } from "../e2e/service.ts";
import { programEntry } from "../main.ts";

/** Eras of the protocol, by the versions that a client offers. */
export const eras = ["legacy", "modern"] as const;

/** An era of the protocol. */
export type Era = (typeof eras)[number];

/** Options of a test client. */
export interface McpOptions {
  era?: Era;
  /** Name that the client reports. */
  name?: string;
  who?: Principal;
  /** Path of the endpoint. */
  path?: string;
  headers?: Record<string, string>;
  /** Further options of the library's client. */
  library?: ClientOptions;
}

/** Connects over HTTP; the caller closes the client. */
export async function connectHttp({ url }: Pick<Service, "url">, options: McpOptions = {}): Promise<Client> {
  const { who = "caller", path = "/mcp", headers = {} } = options;
  return await open(
    new StreamableHTTPClientTransport(new URL(path, url), {
      requestInit: { headers: { authorization: `Bearer ${who}-token-for-tests`, ...headers } },
    }),
    options,
  );
}

/** Starts `toolgate mcp` and connects to it; the caller closes the client, which ends the process. */
export async function connectStdio(
  { url }: Pick<Service, "url">,
  options: McpOptions & { args?: string[]; cwd?: string } = {},
): Promise<Client> {
  const { who = "caller", args = [], cwd } = options;
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [programEntry(), "mcp", "--server", url, ...args],
    env: { PATH: process.env.PATH ?? "", TOOLGATE_TOKEN: `${who}-token-for-tests` },
    stderr: "inherit",
    ...(cwd !== undefined && { cwd }),
  });
  const client = await open(transport, options);
  // The library handles notifications a turn later than results, and would lose progress that arrives together with its result.
  const deliver = transport.onmessage;
  let delivered = Promise.resolve();
  transport.onmessage = (message) => {
    delivered = delivered.then(() => deliver?.(message));
  };
  return client;
}

/** Both ways to connect, by name. */
export const transports = { http: connectHttp, stdio: connectStdio } as const;

async function open(transport: Transport, { era = "modern", name = "test-client", library }: McpOptions) {
  const client = new Client(
    { name, version: "1.0.0" },
    { ...library, versionNegotiation: { mode: era === "modern" ? "auto" : "legacy" } },
  );
  await client.connect(transport);
  return client;
}

/** Callback for progress, and a promise of the first progress that names an open permission request. */
export function askedProgress(): {
  asked: Promise<string>;
  onprogress(progress: { message?: string | undefined }): void;
} {
  const { promise: asked, resolve } = Promise.withResolvers<string>();
  return {
    asked,
    onprogress({ message = "" }) {
      if (message.includes("waiting for approval")) resolve(message);
    },
  };
}

/** Text of a result. */
export function textOf({ content }: { content: readonly { type: string }[] }): string {
  return content.flatMap((item) => ("text" in item && typeof item.text === "string" ? [item.text] : [])).join("\n");
}
