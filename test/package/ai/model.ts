// Preloaded by the tests: models of the AI SDK that call one tool, then repeat what they read of it.
import { MockLanguageModelV3 } from "ai/test";

const { TOOL = "bash", INPUT = "{}" } = process.env;
const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};
const call = { type: "tool-call", toolCallId: "call_1", toolName: TOOL, input: INPUT } as const;

type Prompt = MockLanguageModelV3["doGenerateCalls"][number]["prompt"];
const readIn = (prompt: Prompt) =>
  prompt
    .flatMap(({ role, content }) => (role === "tool" ? content : []))
    .flatMap((part) => ("output" in part ? part.output : []));

const model = () =>
  new MockLanguageModelV3({
    async doGenerate({ prompt }) {
      const read = readIn(prompt);
      const content = read.length === 0 ? call : ({ type: "text", text: JSON.stringify(read) } as const);
      return {
        content: [content],
        finishReason: { unified: read.length === 0 ? "tool-calls" : "stop", raw: "" },
        usage,
        warnings: [],
      };
    },
    async doStream({ prompt }) {
      const read = readIn(prompt);
      const finish = {
        type: "finish",
        finishReason: { unified: read.length === 0 ? "tool-calls" : "stop", raw: "" },
        usage,
      } as const;
      const text = [
        { type: "text-start", id: "1" },
        { type: "text-delta", id: "1", delta: JSON.stringify(read) },
        { type: "text-end", id: "1" },
      ] as const;
      return {
        stream: ReadableStream.from([
          { type: "stream-start", warnings: [] } as const,
          ...(read.length === 0 ? [call] : text),
          finish,
        ]),
      };
    },
  });

Object.assign(globalThis, { AI_SDK_DEFAULT_PROVIDER: { languageModel: model } });
