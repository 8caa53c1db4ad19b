// Prints each result of a tool as the AI SDK streams it.

import { stepCountIs, streamText } from "ai";
import { toolgateTools } from "toolgate/ai";

const { tools, close } = await toolgateTools();
const abort = new AbortController();
const { fullStream } = streamText({
  ...{ model: "mock", tools, stopWhen: stepCountIs(2), prompt: "Go.", abortSignal: abort.signal },
});
for await (const part of fullStream) {
  if (part.type === "tool-result")
    console.log(JSON.stringify({ preliminary: part.preliminary === true, ...Object(part.output) }));
  if (part.type === "tool-result" && process.env.ABORT === Object(part.output).status) abort.abort();
  if (part.type === "text-delta") console.log(part.text);
}
await close();
