import { randomUUID } from "node:crypto";
import { realpathSync } from "node:fs";
import { join, resolve } from "node:path";
import { expect, vi } from "vitest";
import { SourceService } from "../../gen/opencode/tool/v1/source_service_pb.ts";
import type { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { writeOffer } from "../mcp/write-offer.ts";
import { clientOf, connect } from "./clients.ts";
import { read } from "./reading.ts";
import type { Service } from "./service.ts";

const checkout = resolve(import.meta.dirname, "../..");
/** Folders that programs of the tests need: a copy of the checkout shares the packages of the original. */
export const programFolders: readonly string[] = [checkout, realpathSync(join(checkout, "node_modules"))];
const program = resolve(import.meta.dirname, "../mcp/upstream-server.ts");
const inputSchema = { type: "object", properties: { text: { type: "string" } } };

/** Makes a tool of the test's server, which does what `does` says. */
export const upstreamOffer = (name: string, does = name, more: object = {}) => ({
  ...{ name, description: `Does ${does}.`, inputSchema, does },
  ...more,
});

/** Offers of the servers of a test, as files in a directory. */
export function offersIn(name: string) {
  const folder = join(checkout, ".cache", `${name}-${process.pid}`);
  const fileOf = (server: string) => join(folder, `${server}.json`);
  return {
    folder,
    fileOf,
    offer: (server: string, tools: readonly object[], behaviour = "") =>
      writeOffer(fileOf(server), { tools, behaviour }),
    /** Writes the configuration of a server. */
    table: (server: string, more = "") => `[mcp.${server}]
command = ${JSON.stringify(process.execPath)}
args = ${JSON.stringify([program, fileOf(server)])}
folders = ${JSON.stringify(programFolders)}
${more}
`,
  };
}

/** Actions of tests on the MCP servers of a service. */
export function upstreamClients(service: Service) {
  const sources = () => clientOf(SourceService, service.url, "approver-token-for-tests");

  async function sourceOf(name: string) {
    return (await sources().listSources({})).sources.find((source) => source.name === name);
  }

  async function accept(name: string): Promise<void> {
    await vi.waitFor(async () => expect((await sourceOf(name))?.digest).not.toBe(""), { timeout: 60_000 });
    await sources().acceptSource({ name, digest: (await sourceOf(name))?.digest ?? "" });
  }

  async function listed() {
    return await connect(service, "caller").tools.listTools({ agent: "free" });
  }

  async function namesOf(server: string): Promise<string[]> {
    return (await listed()).tools.map(({ name }) => name).filter((name) => name.startsWith(`${server}_`));
  }

  async function call(name: string, input: object = {}, agent = "free") {
    const { part } = await connect(service, "caller").tools.callTool({ tool: name, input: input as never, agent });
    return part?.state.value as unknown as {
      output: string;
      error: string;
      reason: ToolErrorReason;
      attachments: { mime: string; filename: string }[];
    };
  }

  /** Starts a call that asks, and returns what it asks. */
  async function ask(name: string, input: object = {}, agent = "free", inSession?: string) {
    const { tools, newSession } = connect(service, "caller");
    const sessionId = inSession ?? (await newSession());
    const stream = read(
      tools.executeTool({ sessionId, callId: randomUUID(), tool: name, input: input as never, agent }),
    );
    const request = await stream.until("permissionAsked");
    const answer = (more: object) =>
      connect(service, "approver").permissions.respondToPermission({
        ...{ sessionId, permissionId: request.id, expectedDigest: request.digest },
        ...more,
      });
    return { request, answer, stream, sessionId };
  }
  return { sources, sourceOf, accept, listed, namesOf, call, ask };
}
