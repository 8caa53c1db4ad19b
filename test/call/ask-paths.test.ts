import { mkdir, rename, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { describe, expect, test } from "vitest";
import * as z from "zod";
import { ToolErrorReason } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { Ask } from "../../src/core/ask.ts";
import { boundTool, defineTool } from "../../src/tool/define-tool.ts";
import { serve } from "./server.ts";

const asking = (name: string, asks: (place: Place) => readonly object[], body: typeof asks = () => []) => {
  const places = ({ directory }: { directory: string }): Place => ({ inside: directory, outside: dirname(directory) });
  return defineTool({
    name,
    description: "Asks what a test wants.",
    input: z.object({}),
    // What a tool of JavaScript returns is not checked by types.
    plan: (_, { workspace }) => ({ title: name, asks: asks(places(workspace)) as Ask[] }),
    async execute(_, ctx) {
      for (const ask of body(places(ctx.workspace))) await ctx.ask(ask as Ask);
      return { output: "ran" };
    },
  });
};

interface Place {
  inside: string;
  outside: string;
}

/** Calls the tool and returns the permission requests that it opens at once. */
async function requestsOf(tool: ReturnType<typeof asking>, prepare?: (place: Place) => Promise<void>) {
  const { agent, workspace } = await serve([tool]);
  const outside = dirname(workspace);
  await prepare?.({ inside: workspace, outside });
  const sessionId = "ses_test";
  await agent.sessions.createSession({ sessionId });
  const requests: [string, string[]][] = [];
  for await (const { event } of agent.tools.executeTool({
    sessionId,
    callId: "c1",
    tool: boundTool(tool).name,
    input: {},
  })) {
    if (event?.event.case !== "permissionAsked") continue;
    const { permission, patterns } = event.event.value;
    requests.push([permission, patterns.map((pattern) => pattern.replace(outside, "OUT"))]);
    break;
  }
  return requests;
}

const outsideAsk = ["external_directory", ["OUT/*"]];

describe("a path outside the workspace asks for its directory, whatever tool asks", () => {
  test("in an ask of a permission that is judged by path", async () => {
    const tool = asking("reader", ({ outside }) => [
      { permission: "read", patterns: [`${outside}/a.json`], paths: [`${outside}/a.json`] },
    ]);
    expect(await requestsOf(tool)).toEqual([outsideAsk]);
  });

  test("in an ask of the tool's own permission", async () => {
    const tool = asking("list", ({ outside }) => [
      { permission: "todo_export", patterns: ["export"], paths: [`${outside}/todo.txt`] },
    ]);
    expect(await requestsOf(tool)).toEqual([outsideAsk]);
  });

  test("if only patterns name it", async () => {
    const tool = asking("reader", () => [{ permission: "read", patterns: ["../a.json"] }]);
    expect(await requestsOf(tool)).toEqual([outsideAsk]);
  });

  test("if pattern and path lead to different files", async () => {
    const byPath = asking("reader", ({ outside }) => [
      { permission: "read", patterns: ["a.json"], paths: [`${outside}/a.json`] },
    ]);
    const byPattern = asking("reader", ({ inside }) => [
      { permission: "read", patterns: ["../a.json"], paths: [`${inside}/a.json`] },
    ]);
    expect(await requestsOf(byPath)).toEqual([outsideAsk]);
    expect(await requestsOf(byPattern)).toEqual([outsideAsk]);
  });

  test("if a link leads there", async () => {
    const tool = asking("reader", ({ inside }) => [
      { permission: "read", patterns: ["link/a.json"], paths: [join(inside, "link/a.json")] },
    ]);
    expect(await requestsOf(tool, ({ inside, outside }) => symlink(outside, join(inside, "link")))).toEqual([
      outsideAsk,
    ]);
  });

  test("as working directory", async () => {
    const tool = asking("sh", ({ outside }) => [{ permission: "bash", patterns: ["ls"], cwd: outside }]);
    expect(await requestsOf(tool)).toEqual([outsideAsk]);
  });

  test("in an ask of a running body", async () => {
    const tool = asking(
      "reader",
      () => [],
      () => [{ permission: "read", patterns: ["../a.json"] }],
    );
    expect(await requestsOf(tool)).toEqual([outsideAsk]);
  });

  test("in a command line of a running body", async () => {
    const tool = asking(
      "sh",
      () => [],
      ({ inside }) => [{ permission: "bash", patterns: ["cat ../a.json"], cwd: inside }],
    );
    expect(await requestsOf(tool)).toEqual([outsideAsk]);
  });

  test("although the plan asks for another directory", async () => {
    const tool = asking("reader", ({ inside, outside }) => [
      { permission: "external_directory", patterns: [`${inside}/*`], paths: [inside], wholeCall: true },
      { permission: "read", patterns: [`${outside}/a.json`] },
    ]);
    expect(await requestsOf(tool)).toMatchObject([["external_directory", expect.arrayContaining(["OUT/*"])]]);
  });
});

test("a plan cannot set the fields of the engine: restricts does not allow, and line is not judged", async () => {
  const tool = asking("deploy", () => [
    { permission: "deploy", patterns: ["production"], restricts: true, line: "nothing" },
  ]);
  expect(await requestsOf(tool)).toEqual([["deploy", ["production"]]]);
});

describe("a resolved path", () => {
  const show = (swap: (file: string) => Promise<void> = async () => undefined) =>
    defineTool({
      name: "show",
      description: "Shows a file.",
      input: z.object({ file: z.string() }),
      permissions: ["read"],
      async plan({ file }, { workspace }) {
        const path = await workspace.resolve(file);
        return { title: path.pattern, asks: path.asks("read"), path };
      },
      async execute(_, { plan: { path } }) {
        await swap(path.absolute);
        using file = path.open();
        return { output: (await file?.text()) ?? "nothing" };
      },
    });

  async function call(tool: ReturnType<typeof show>, file: string) {
    const { agent, workspace } = await serve([tool]);
    await writeFile(join(workspace, "a.txt"), "one");
    await mkdir(join(workspace, "directory"));
    const { part } = await agent.tools.callTool({ tool: "show", input: { file } });
    return part?.state.value;
  }

  test("makes its asks, and opens the file that was judged", async () => {
    expect(await call(show(), "a.txt")).toMatchObject({ title: "a.txt", output: "one" });
    expect(await call(show(), "none.txt")).toMatchObject({ output: "nothing" });
    expect(await call(show(), "directory")).toMatchObject({ error: expect.stringContaining("is a directory") });
  });

  test("is not opened if the file was replaced by a link after it was judged", async () => {
    const swapped = show(async (file) => {
      await rename(file, `${file}.old`);
      await symlink("/etc/hostname", file);
    });
    expect(await call(swapped, "a.txt")).toMatchObject({ reason: ToolErrorReason.CHANGED_AFTER_APPROVAL });
  });
});
