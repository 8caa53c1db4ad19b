import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";

/** Returns its text. It asks for nothing, so it measures what a call costs by itself. */
export const echo = defineTool({
  name: "echo",
  version: "1",
  description: "Return the given text unchanged. Useful to check that the service answers.",
  input: z.object({ text: z.string().describe("The text to return") }),
  permissions: [],
  readOnly: true,
  idempotent: true,
  plan: () => ({ title: "echo", asks: [] }),
  execute: ({ text }) => ({ output: text }),
});
