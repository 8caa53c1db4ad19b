/** A worker whose tool `echo_typescript` returns its text. */
import { defineTool, serve, z } from "../../src/bodies/sdk/worker.ts";

const echo = defineTool({
  name: "echo_typescript",
  description: "Returns the text.",
  input: z.object({ text: z.string() }),
  permissions: [{ patterns: ["{text}"] }],
  execute: ({ text }) => ({ output: text }),
});
await serve([echo], { capacity: 64 });
