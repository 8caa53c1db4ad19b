import { randomUUID } from "node:crypto";
import { registerHooks } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { aiSdks, installAiSdks } from "../test/package/ai/install-ai-sdks.ts";
import type { Processes } from "./processes.ts";
import { percentile, spread, table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** The parts of the AI SDK that a run needs. */
interface Sdk {
  generateText(options: object): Promise<{ text: string }>;
  dynamicTool(tool: object): object;
  jsonSchema(schema: object): object;
  stepCountIs(count: number): object;
}
type ToolgateTools = (options: object) => Promise<{ tools: object; close(): Promise<void> }>;

/** Measures a run of the AI SDK whose model calls one tool: `echo` of the service, and a local function, in turn. */
export async function measureAiSdk(
  processes: Processes,
  { rounds, calls }: { rounds: number; calls: number },
  print: (text: string) => void,
): Promise<void> {
  installAiSdks();
  const { sdk, mock, toolgateTools } = await load();
  const { server } = await startToolgate(processes, { name: "ai-sdk" });
  const { tools, close } = await toolgateTools({ baseUrl: server.url, token: "caller-token-for-tests" });
  const inputSchema = sdk.jsonSchema({ type: "object", properties: { text: { type: "string" } } });
  const local = { echo: sdk.dynamicTool({ inputSchema, execute: async ({ text }: { text: string }) => text }) };
  const kinds = [
    { name: "a function of the program", tools: local, cpu: [] as number[], p50: [] as number[] },
    { name: "`toolgateTools()`", tools, cpu: [] as number[], p50: [] as number[] },
  ] as const;
  const run = (tools: object) =>
    sdk.generateText({ model: mock(), tools, stopWhen: sdk.stepCountIs(2), prompt: "Go." });
  for (const { tools } of kinds) for (let call = 0; call < calls; call += 1) await run(tools);
  for (let round = 0; round < rounds; round += 1)
    for (const { tools, cpu, p50 } of kinds) {
      const times: number[] = [];
      const before = process.cpuUsage();
      for (let call = 0; call < calls; call += 1) {
        const began = performance.now();
        await run(tools);
        times.push(performance.now() - began);
      }
      const { user, system } = process.cpuUsage(before);
      cpu.push((user + system) / calls);
      p50.push(percentile(times, 0.5));
    }
  await close();
  print(
    `Median (min–max) of ${rounds} rounds of ${calls} runs each: \`generateText\` of AI SDK 7 with a model that calls one tool with 1 KiB and then ends, one run at a time. CPU is that of the program alone.`,
  );
  print(
    table(
      ["the tool", "CPU µs/run", "p50 ms"],
      kinds.map(({ name, cpu, p50 }) => [name, spread(cpu), spread(p50, 2)]),
    ),
  );
  const [own, remote] = kinds;
  const ratios = (key: "cpu" | "p50") => remote[key].map((value, round) => value / (own[key][round] ?? Number.NaN));
  print(`\`toolgateTools()\` ÷ local: CPU ${spread(ratios("cpu"), 2)}, p50 ${spread(ratios("p50"), 2)}.`);
}

/** Loads the adapter from the checkout, over the installed AI SDK. */
async function load() {
  const at = (path: string) => pathToFileURL(join(aiSdks, path)).href;
  const places: Readonly<Record<string, string>> = {
    ai: at("ai/dist/index.js"),
    "ai/test": at("ai/dist/test/index.js"),
    "ai/package.json": at("ai/package.json"),
    "toolgate/client": new URL("../src/client/client.ts", import.meta.url).href,
  };
  registerHooks({ resolve: (name, context, next) => next(places[name] ?? name, context) });
  const [sdk, { MockLanguageModelV3: Mock }, { toolgateTools }] = await Promise.all(
    ["ai", "ai/test", "../packages/ai/src/index.ts"].map((name) => import(name)),
  );
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
  const mock = () =>
    new Mock({
      async doGenerate({ prompt }: { prompt: { role: string }[] }) {
        const isOver = prompt.some(({ role }) => role === "tool");
        const call = {
          type: "tool-call",
          toolCallId: `call_${randomUUID()}`,
          toolName: "echo",
          input,
        };
        const finishReason = { unified: isOver ? "stop" : "tool-calls", raw: "" };
        return { content: [isOver ? { type: "text", text: "done" } : call], finishReason, usage, warnings: [] };
      },
    });
  return { sdk: sdk as Sdk, mock, toolgateTools: toolgateTools as ToolgateTools };
}

const input = JSON.stringify({ text: "x".repeat(1_024) });
