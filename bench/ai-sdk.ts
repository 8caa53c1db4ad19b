import { randomUUID } from "node:crypto";
import * as sdk from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { toolgateTools } from "../src/ai-sdk/toolgate-tools.ts";
import type { Processes } from "./processes.ts";
import { percentile, spread, table } from "./report.ts";
import { startToolgate } from "./toolgate.ts";

/** Measures a run of the AI SDK whose model calls one tool: `echo` of the service, and a local function, in turn. */
export async function measureAiSdk(
  processes: Processes,
  { rounds, calls }: { rounds: number; calls: number },
  print: (text: string) => void,
): Promise<void> {
  const { server } = await startToolgate(processes, { name: "ai-sdk" });
  const { tools, close } = await toolgateTools({ baseUrl: server.url, token: "caller-token-for-tests" });
  const inputSchema = sdk.jsonSchema({ type: "object", properties: { text: { type: "string" } } });
  const local = { echo: sdk.dynamicTool({ inputSchema, execute: async (input) => input }) };
  const kinds = [
    { name: "a function of the program", tools: local, cpu: [] as number[], p50: [] as number[] },
    { name: "`toolgateTools()`", tools, cpu: [] as number[], p50: [] as number[] },
  ] as const;
  const run = (tools: sdk.ToolSet) =>
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

/** Creates a model that calls one tool, and then ends. */
function mock() {
  const tokens = { total: 1, noCache: 1, cacheRead: undefined, cacheWrite: undefined };
  const usage = { inputTokens: tokens, outputTokens: { total: 1, text: 1, reasoning: undefined } };
  return new MockLanguageModelV3({
    async doGenerate({ prompt }) {
      const isOver = prompt.some(({ role }) => role === "tool");
      const call = { type: "tool-call", toolCallId: `call_${randomUUID()}`, toolName: "echo", input } as const;
      const content = [isOver ? ({ type: "text", text: "done" } as const) : call];
      return { content, finishReason: { unified: isOver ? "stop" : "tool-calls", raw: "" }, usage, warnings: [] };
    },
  });
}

const input = JSON.stringify({ text: "x".repeat(1_024) });
