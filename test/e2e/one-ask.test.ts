import { mkdir, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { JsonObject } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { PermissionReply, ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { viewLines } from "../../src/view/view-lines.ts";
import { installBun } from "../bodies/processes/bun-program.ts";
import { connectWorker, echoTool } from "../bodies/workers/raw-worker.ts";
import { connect } from "./clients.ts";
import { hostOf, hostTokens } from "./host.ts";
import { createService, type Service } from "./service.ts";
import { offersIn, upstreamClients, upstreamOffer } from "./upstream-clients.ts";

/** Tools of each form of a file; every one asks in its body what its input names. */
const tools = `import { defineTool, Tool, tool, z } from "toolgate/plugin";
const asks = { type: "array", items: { type: "object" } };
async function execute({ asks }, ctx) {
  for (const ask of asks) await ctx.ask(ask);
  return "done";
}
export const plain = tool({ description: "", args: { asks }, execute });
export const defined = Tool.define("ask_defined", async () => ({ description: "", parameters: { asks }, execute }));
export const rollout = tool({ description: "", args: { text: { type: "string" } }, execute: async ({ text }, ctx) => {
  await ctx.ask({ permission: "rollout_x", patterns: ["prod"], metadata: { text, said: text + "!", to: { "a/b": "x\\u202ey" } } });
  return "done";
}});
const input = z.object({ asks: z.array(z.object({ permission: z.string(), patterns: z.array(z.string()) })) });
export const own = defineTool({ description: "", input, execute: async (input, ctx) => ({ output: await execute(input, ctx) }) });
export const planned = defineTool({
  description: "", input, permissions: ["read", "list"],
  async plan({ asks }, { workspace }) {
    const made = asks.flatMap(({ permission, patterns }) => patterns.map((pattern) => ({ permission, pattern })));
    return { title: "planned", asks: (await Promise.all(made.map(async ({ permission, pattern }) =>
      (await workspace.resolve(pattern)).asks(permission)))).flat() };
  },
  execute: () => ({ output: "done" }),
});
`;

const mcp = offersIn("one-ask");
const settings = [
  '[permission]\n"ask_*" = "allow"\n',
  '[agent.strict.permission.external_directory]\n"/usr/lib/*" = "deny"\n',
  hostTokens,
].join("");

/** Calls a tool while an approver approves each request, and returns what was asked. */
async function requestsOf(service: Service, tool: string, input: JsonObject, agent = "build") {
  const { tools, newSession } = connect(service, "caller");
  const { permissions } = connect(service, "approver");
  const sessionId = await newSession();
  const asked: string[] = [];
  for await (const { event } of tools.executeTool({ sessionId, callId: "c1", tool, agent, input })) {
    if (event?.event.case !== "permissionAsked") continue;
    const { id: permissionId, permission, patterns } = event.event.value;
    asked.push([permission, ...patterns].join(" "));
    await permissions.respondToPermission({ sessionId, permissionId, reply: PermissionReply.ONCE });
  }
  const { part } = await tools.getToolPart({ sessionId, callId: "c1" });
  return { asked, state: part?.state };
}

const ask = (permission: string, ...patterns: string[]) => ({ permission, patterns });

describe.each(["node", "bun"])("a tool file under %s", (runtime) => {
  const service = createService({
    settings: `${runtime === "bun" ? `[tools]\nbun = "${installBun().program}"\n` : ""}${settings}`,
  });
  beforeAll(async () => {
    await service.start();
    await mkdir(join(dirname(service.config), "tool"), { recursive: true });
    await writeFile(join(dirname(service.config), "tool/ask.ts"), tools);
    expect((await connect(service, "caller").tools.listTools({})).problems).toEqual([]);
  });
  afterAll(service.close);

  test.each(["ask_plain", "ask_defined", "ask_own"])("%s asks once for each directory", async (tool) => {
    const count = async (...asks: JsonObject[]) => {
      const { asked, state } = await requestsOf(service, tool, { asks });
      expect(state?.case).toBe("completed");
      return asked;
    };
    const etc = ["external_directory /etc/*"];
    expect(await count(ask("read", "/etc/hostname"))).toEqual(etc);
    expect(await count(ask("list", "/srv"))).toEqual(["external_directory /srv/*"]);
    expect(await count(ask("read", "/etc/hostname", "/etc/hosts"))).toEqual(etc);
    expect(await count(ask("read", "/etc/hostname"), ask("read", "/etc/hosts"))).toEqual(etc);
    expect(await count(ask("external_directory", "/etc/*"), ask("read", "/etc/hostname"))).toEqual(etc);
    expect(await count(ask("stage", "prod"), ask("stage", "prod"), ask("stage", "test"))).toEqual([
      "stage prod",
      "stage test",
    ]);
    expect(await count(ask("bash", "cat /etc/hostname"), ask("read", "/etc/hostname"))).toEqual([
      ...etc,
      "bash cat /etc/hostname",
    ]);
    expect(await count(ask("edit", "/etc/hostname"))).toEqual([...etc, "edit /etc/hostname"]);
    expect(await count(ask("read", "/etc/hostname"), ask("read", "/srv/a", "/etc/hosts"))).toEqual([
      ...etc,
      "external_directory /srv/*",
    ]);
    expect(await count(ask("read", "/etc/hostname", "/srv/a"))).toEqual(["external_directory /etc/* /srv/*"]);
    // The same by another spelling is the same.
    for (const [permission, ...spellings] of [
      ["read", "/etc/hostname", "/etc/../etc//hostname"],
      ["edit", "w.txt", "./w.txt"],
      ["bash", "ls -l", "ls -l"],
      ["rollout", "prod", "prod"],
    ] as const)
      expect(await count(...spellings.map((pattern) => ask(permission, pattern))), permission).toHaveLength(1);
  });

  test("a plan asks once for each directory", async () => {
    for (const [permission, path, directory] of [
      ["read", "/etc/hostname", "/etc/*"],
      ["list", "/srv", "/srv/*"],
    ] as const) {
      const { asked } = await requestsOf(service, "ask_planned", { asks: [ask(permission, path)] });
      expect(asked).toEqual([`external_directory ${directory}`]);
    }
  });
});

describe("the service", () => {
  const worker =
    '[[token]]\nid = "ci-worker"\nroles = ["worker"]\ntools = ["ci_*"]\npermissions = ["rollout", "read", "list"]\n';
  const service = createService({
    settings: `${settings}${worker}value = "ci-worker-token-for-tests"\n${mcp.table("notes")}`,
  });
  beforeAll(async () => {
    await mkdir(mcp.folder, { recursive: true });
    await mcp.offer("notes", [upstreamOffer("echo")]);
    await service.start();
    await upstreamClients(service).accept("notes");
    await mkdir(join(dirname(service.config), "tool"), { recursive: true });
    await writeFile(join(dirname(service.config), "tool/ask.ts"), tools);
  });
  afterAll(async () => {
    await service.close();
    await rm(mcp.folder, { recursive: true });
  });

  test("a tool of an MCP server asks once, and so do a worker's tool and its body", async () => {
    const input = { text: "/etc/hostname" };
    expect((await requestsOf(service, "notes_echo", input)).asked).toEqual(['notes_echo {"text":"/etc/hostname"}']);
    const connected = await connectWorker(service, { tools: [echoTool("ci_echo")] });
    const requests = requestsOf(service, "ci_echo", input);
    const start = await connected.next("start");
    const rollout = ask("rollout", "/etc/hostname", "/etc/hosts");
    for (const [at, value] of [rollout, rollout, ask("list", "/srv"), ask("read", "/srv/a")].entries()) {
      connected.report(start, { case: "request", value: { number: at + 1, request: { case: "ask", value } } });
      await connected.next("answer");
    }
    connected.complete(start);
    expect((await requests).asked).toEqual([
      "ci_echo /etc/hostname",
      "rollout /etc/hostname /etc/hosts",
      "external_directory /srv/*",
    ]);
    connected.cut();
  });

  test("a built-in tool and a delegated one ask once for the directory", async () => {
    const etc = ["external_directory /etc/*"];
    expect((await requestsOf(service, "read", { filePath: "/etc/hostname" })).asked).toEqual(etc);
    expect((await requestsOf(service, "list", { path: "/srv" })).asked).toEqual(["external_directory /srv/*"]);
    const { permissions } = await hostOf(service, "one-ask").waiting("Read", { file_path: "/etc/hostname" });
    expect(permissions.map(({ permission, patterns }) => [permission, ...patterns].join(" "))).toEqual(etc);
  });

  test("an ask of a body shows what it says beside the input, or that it is too much", async () => {
    const viewOf = async (text: string) => {
      const { tools, newSession } = connect(service, "caller");
      const call = { sessionId: await newSession(), callId: "c1", tool: "ask_rollout", input: { text } };
      for await (const { event } of tools.executeTool(call)) {
        if (event?.event.case !== "permissionAsked") continue;
        await tools.cancelTool(call);
        const { view } = event.event.value;
        return { ...view, lines: viewLines(event.event.value).map(({ name, text }) => `${name}=${text}`) };
      }
    };
    expect(await viewOf("hello")).toMatchObject({
      complete: true,
      lines: ["tool=ask_rollout", "text=hello", "metadata/said=hello!", "metadata/to/a~1b=x\\u{202e}y"],
    });
    expect(await viewOf("x".repeat(5_000))).toMatchObject({
      complete: false,
      missing: ["what the tool says of this ask: it has 5019 bytes, over 4 KiB"],
    });
  });

  test("an approved directory holds for the rest of its call, and no longer", async () => {
    const input = { asks: [ask("read", "/etc/hostname"), ask("read", "/etc/hosts")] };
    for (const _ of [1, 2]) {
      const { asked } = await requestsOf(service, "ask_own", input);
      expect(asked).toEqual(["external_directory /etc/*"]);
    }
  });

  test("a rule that denies holds although the directory around was approved", async () => {
    const input = { asks: [ask("read", "/usr/a"), ask("read", "/usr/lib/os-release")] };
    const { asked, state } = await requestsOf(service, "ask_own", input, "strict");
    expect(asked).toEqual(["external_directory /usr/*"]);
    expect(state?.value).toMatchObject({ reason: ToolErrorReason.DENIED });
  });
});
