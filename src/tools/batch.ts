import type { JsonObject } from "@bufbuild/protobuf";
import * as z from "zod";
import { defineTool } from "../tool/define-tool.ts";
import type { Tool } from "../tool/tool.ts";
import { createBeforeImages, unrestoredNote } from "./batch/before-images.ts";
import { type BatchResult, endAtomicBatch, hasFailed, isFinal, mayChange } from "./batch/end-of-batch.ts";
import type { FileChanges } from "./fs/change-file.ts";

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

const input = z.preprocess(
  alsoNamed("tools", "tool_calls"),
  z
    .object({
      tools: z
        .array(toolCall)
        .min(1)
        .max(maxCalls, `at most ${maxCalls} calls; make a second batch for the others`)
        .describe("The calls to make"),
      atomic: z
        .boolean()
        .optional()
        .describe(
          "Start all or none; if one fails, restore the files that write, edit, multiedit and apply_patch changed. Default: true if one of the calls may change something",
        ),
    })
    .transform((batch) => ({ ...batch, atomic: batch.atomic ?? batch.tools.some(({ tool }) => mayChange(tool)) })),
);

/** Makes several calls at the same time; each is a separate call, with separate asks and a separate result. */
export function createBatch({ changes }: { changes: Pick<FileChanges, "inTurns" | "replace"> }): Tool {
  return defineTool({
    name: "batch",
    version: "2",
    description: [
      `Make up to ${maxCalls} tool calls at the same time instead of one after another. Each is judged and asked for on its own.`,
      "Calls that only read end each for itself. A batch with a call that may change something is atomic, unless you set atomic to",
      "false: none starts before all are allowed, and if one may not run none does. If one of them fails, or its command exits with",
      "another code than 0, the batch is an error, and files that write, edit, multiedit and apply_patch changed are restored.",
      "Nothing else is: what bash, webfetch and other tools did stays done.",
    ].join(" "),
    input,
    permissions: ["batch"],
    openWorld: true,
    destructive: true,
    durable: { lossNote: unrestoredNote },
    plan: ({ tools, atomic }) => {
      const names = [...new Set(tools.map(({ tool }) => tool))];
      const final = atomic ? names.filter(isFinal) : [];
      const count = `${tools.length} ${tools.length === 1 ? "call" : "calls"}`;
      return {
        title: [count, ...(atomic ? ["atomic"] : []), ...(final.length > 0 ? [finalWords(final)] : [])].join(", "),
        asks: [
          {
            permission: "batch",
            patterns: names,
            ...(atomic && { metadata: { atomic, cannotBeTakenBack: final } }),
          },
        ],
      };
    },
    async execute({ tools, atomic }, ctx) {
      // The JSON type of zod equals that of protobuf.
      const children = tools.map(({ tool, args }) => ({ tool, input: args as JsonObject }));
      const images = createBeforeImages(ctx, changes);
      const ended = await ctx.calls(children, { atomic, ...(atomic && { changes: images }) });
      const results = ended.map((result, index) => ({ ...result, tool: tools[index]?.tool ?? "" }));
      const failed = results.filter(hasFailed).length;
      const metadata = { calls: results.map(describe), failed };
      const sections = results.map(section);
      if (atomic) {
        const show = (end: JsonObject) => ctx.metadata({ metadata: { ...metadata, ...end } });
        await endAtomicBatch(results, images, { show, sections });
      }
      const summary =
        failed === 0
          ? `All ${results.length} tools executed successfully.`
          : `Executed ${results.length - failed}/${results.length} tools successfully. ${failed} failed.`;
      return {
        output: [summary, ...sections].join("\n\n"),
        metadata,
        attachments: results.flatMap(({ attachments }) => attachments),
      };
    },
  });
}

const finalWords = (tools: readonly string[]) => `${tools.join(" and ")} cannot be taken back`;

function describe({ callId, tool, status, title, commandFailure }: BatchResult): JsonObject {
  return { callId, tool, status, title, ...(commandFailure !== undefined && { commandFailure }) };
}

function section({ callId, tool, status, text, attachments }: BatchResult): string {
  const files = attachments.map(({ filename, mime }) => `(attached: ${filename ?? mime})`);
  const lines = [text, ...files].join("\n");
  return `<call id=${JSON.stringify(callId)} tool=${JSON.stringify(tool)} status="${status}">\n${lines}\n</call>`;
}
