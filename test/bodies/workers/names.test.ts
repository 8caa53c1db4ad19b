import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, expect, onTestFinished, test } from "vitest";
import { ToolRegistration } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { connect } from "../../e2e/clients.ts";
import { createService } from "../../e2e/service.ts";
import { connectWorker, echoTool, newInstance, type RawHello } from "./raw-worker.ts";

const service = createService({
  settings: `
[permission]
"ci_*" = "allow"
[[token]]
id = "ci-worker"
roles = ["worker"]
tools = ["*"]
value = "ci-worker-token-for-tests"
`,
});
const agent = () => connect(service, "caller");
const plugin = `import { definePlugin } from "toolgate/plugin";
export default definePlugin({
  name: "names",
  tool: { ci_plugged: { args: {}, description: "Of a plugin.", execute: async () => "plugin" } },
});
`;
beforeAll(async () => {
  // The folder of the configuration is known once it has started.
  await service.start();
  await service.stop();
  await write("plugins/names.ts", plugin);
  await writeFile(service.config, `plugin = ["plugins/names.ts"]\n${await readFile(service.config, "utf8")}`);
  await service.start();
});
afterAll(service.close);

async function workerFor(names: readonly string[], hello: RawHello = {}) {
  const worker = await connectWorker(service, { tools: names.map((name) => echoTool(name)), ...hello });
  onTestFinished(worker.cut);
  return worker;
}

/** Writes a file below the folder of the configuration. */
async function write(path: string, text: string): Promise<void> {
  const file = join(dirname(service.config), path);
  await mkdir(dirname(file), { recursive: true });
  await writeFile(file, text);
}

const listed = async () => new Map((await agent().tools.listTools({})).tools.map((tool) => [tool.name, tool]));

/** Resolves with the state in which a call ends. */
async function call(tool: string, fields: { definitionId?: string } = {}) {
  const { part } = await agent().tools.callTool({ tool, input: { text: "x" }, waitMs: 60_000, ...fields });
  return part?.state;
}

const file = (output: string) =>
  `export default { description: "Of a file.", args: {}, execute: async () => "${output}" };\n`;
test("built-in tools, and tools of files and plugins, keep their names; a clash refuses only that tool", async () => {
  const builtIn = [...(await listed()).keys()];
  expect(builtIn).toEqual(expect.arrayContaining(["bash", "read", "edit", "echo"]));
  await write(
    "tool/ci_greet.ts",
    `${file("greeting")}export const loud = { description: "Loud.", args: {}, execute: () => "LOUD" };\n`,
  );
  await expect
    .poll(async () => [...(await listed()).keys()])
    .toEqual(expect.arrayContaining(["ci_greet", "ci_plugged"]));
  const taken = [...new Set([...builtIn, "ci_greet", "ci_greet_loud", "ci_plugged"])];
  const before = await listed();
  const worker = await workerFor([...taken, "ci_free"]);
  expect(worker.welcome.tools).toMatchObject([
    ...taken.map((name) => ({
      registration: ToolRegistration.NAME_TAKEN,
      message: `the name "${name}" belongs to the service; choose another one`,
    })),
    { registration: ToolRegistration.REGISTERED },
  ]);
  const after = await listed();
  for (const name of taken) expect(after.get(name)).toEqual(before.get(name));
  expect(await call("ci_greet")).toMatchObject({ case: "completed", value: { output: "greeting" } });
  expect(await call("ci_plugged")).toMatchObject({ case: "completed", value: { output: "plugin" } });
  const free = call("ci_free");
  worker.complete(await worker.next("start"), "worker");
  expect(await free).toMatchObject({ case: "completed", value: { output: "worker" } });
  expect(worker.untaken("start")).toBe(0);
});

test("a file takes the name of a worker's tool from its next call on, and gives it back when it is gone", async () => {
  const instanceId = newInstance();
  const worker = await workerFor(["ci_later", "ci_other"], { instanceId });
  const own = (await listed()).get("ci_later");
  expect(own).toMatchObject({ worker: "ci" });
  await write("tool/ci_later.ts", file("of the file"));
  expect(await call("ci_later")).toMatchObject({ case: "completed", value: { output: "of the file" } });
  expect((await listed()).get("ci_later")).toMatchObject({ worker: "", description: "Of a file." });
  // A call that was planned with the worker's tool goes to the worker.
  const bound = call("ci_later", { definitionId: own?.definitionId ?? "" });
  worker.complete(await worker.next("start"), "of the worker");
  expect(await bound).toMatchObject({ case: "completed", value: { output: "of the worker" } });
  const next = await workerFor(["ci_later", "ci_other"], { instanceId, connection: 2n });
  expect(next.welcome.tools).toMatchObject([
    { registration: ToolRegistration.NAME_TAKEN, message: expect.stringContaining("belongs to the service") },
    { registration: ToolRegistration.REGISTERED },
  ]);
  await rm(join(dirname(service.config), "tool/ci_later.ts"));
  const back = await workerFor(["ci_later"], { instanceId, connection: 3n });
  expect(back.welcome.tools).toMatchObject([{ registration: ToolRegistration.REGISTERED }]);
  const calling = call("ci_later");
  back.complete(await back.next("start"), "of the worker");
  expect(await calling).toMatchObject({ case: "completed", value: { output: "of the worker" } });
});
