import type { JsonObject } from "@bufbuild/protobuf";
import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { ChildResult } from "../tool/tool.ts";

const maxCalls = 25;

/** Accepts the field name of a later form of opencode, which some models write. */
const alsoNamed = (name: string, later: string) => (value: unknown) =>
  typeof value === "object" && value !== null && later in value && !(name in value)
    ? { ...value, [name]: Reflect.get(value, later) }
    : value;

const toolCall = z.preprocess(
  alsoNamed("args", "parameters"),
  z.object({
    tool: z
      .string()
      .min(1)
      .refine((tool) => tool !== "batch", "a batch cannot hold another batch; put its calls into this one")
      .describe("The tool to call"),
    args: z.record(z.string(), z.json()).default({}).describe("Its input"),
  }),
);

/** Makes several calls at the same time; each is a separate call, with separate asks and a separate result. */
export const batch = defineTool({
  name: "batch",
  description: [
    `Make up to ${maxCalls} tool calls at the same time instead of one after another. Each is judged and asked for on its own,`,
    "and one that fails does not stop the others. With atomic none starts before all are allowed, and if one may not run none does;",
    "what happens after they have started is not undone.",
  ].join(" "),
  input: z.preprocess(
    alsoNamed("tools", "tool_calls"),
    z.object({
      tools: z
        .array(toolCall)
        .min(1)
        .max(maxCalls, `at most ${maxCalls} calls; make a second batch for the others`)
        .describe("The calls to make"),
      atomic: z.boolean().default(false).describe("Start all or none"),
    }),
  ),
  permissions: ["batch"],
  openWorld: true,
  destructive: true,
  plan: ({ tools }) => ({
    title: `${tools.length} ${tools.length === 1 ? "call" : "calls"}`,
    asks: [{ permission: "batch", patterns: [...new Set(tools.map(({ tool }) => tool))] }],
  }),
  async execute({ tools, atomic }, { calls }) {
    // The JSON type of zod equals that of protobuf.
    const children = tools.map(({ tool, args }) => ({ tool, input: args as JsonObject }));
    const results = await calls(children, { atomic });
    const failed = results.filter(({ status }) => status === "error").length;
    const summary =
      failed === 0
        ? `All ${results.length} tools executed successfully.`
        : `Executed ${results.length - failed}/${results.length} tools successfully. ${failed} failed.`;
    return {
      output: [summary, ...results.map((result, index) => section(result, tools[index]?.tool ?? ""))].join("\n\n"),
      metadata: {
        calls: results.map(({ callId, status, title }, index) => ({
          callId,
          tool: tools[index]?.tool ?? "",
          status,
          title,
        })),
        failed,
      },
      attachments: results.flatMap(({ attachments }) => attachments),
    };
  },
});

function section({ callId, status, text, attachments }: ChildResult, tool: string): string {
  const files = attachments.map(({ filename, mime }) => `(attached: ${filename ?? mime})`);
  const lines = [text, ...files].join("\n");
  return `<call id=${JSON.stringify(callId)} tool=${JSON.stringify(tool)} status="${status}">\n${lines}\n</call>`;
}
