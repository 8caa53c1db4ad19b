/** The fixed tools of the worker kit, with the TypeScript SDK. */
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ChangedAfterApproval, defineTool, serve, type ToolContext, z } from "../../../src/bodies/sdk/worker.ts";

const folder = process.env.TOOLGATE_KIT ?? "";
const note = (line: string) => appendFileSync(join(folder, "ledger"), `${line}\n`);
const text = z.object({ text: z.string() });

/** Waits until the body of a text is released. */
async function untilReleased(name: string, { signal }: ToolContext): Promise<void> {
  while (!existsSync(join(folder, `release-${name}`))) {
    if (signal.aborted) {
      note(`stopped ${name}`);
      throw signal.reason;
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function versionOf(name: string): string {
  const file = join(folder, `version-${name}`);
  return existsSync(file) ? readFileSync(file, "utf8") : "";
}

const letters = (size: number) => Buffer.from(Uint8Array.from({ length: size }, (_, index) => 97 + (index % 26)));

const echo = defineTool({
  name: "kit_echo",
  description: "Returns the text.",
  input: text,
  permissions: [{ patterns: ["{text}"] }],
  async execute(input) {
    note(`entered ${input.text}`);
    return { output: input.text };
  },
});

const write = defineTool({
  name: "kit_write",
  description: "Writes output and a file.",
  input: text.extend({ bytes: z.number(), file_bytes: z.number() }),
  async execute(input, ctx) {
    note(`entered ${input.text}`);
    const output = letters(input.bytes);
    for (let at = 0; at < output.length; at += 16_384) await ctx.output(output.subarray(at, at + 16_384));
    if (input.file_bytes === 0) return {};
    const file = { data: letters(input.file_bytes), mime: "text/plain", filename: `${input.text}.txt` };
    return { attachments: [file] };
  },
});

const [wait, poll] = ["kit_wait", "kit_poll"].map((name) =>
  defineTool({
    name,
    description: "Waits until it is released.",
    input: text,
    async execute(input, ctx) {
      note(`entered ${input.text}`);
      await untilReleased(input.text, ctx);
      return { output: input.text };
    },
  }),
);

const ask = defineTool({
  name: "kit_ask",
  description: "Asks, or makes a call.",
  input: text.extend({ tool: z.string() }),
  async execute(input, ctx) {
    note(`entered ${input.text}`);
    try {
      if (input.tool === "") await ctx.ask({ permission: "kit_traffic", patterns: [input.text] });
      else await ctx.calls([{ tool: input.tool, input: {} }], { atomic: false });
    } catch (error) {
      if (!ctx.signal.aborted) return { output: error instanceof Error ? error.message : "" };
      note(`stopped ${input.text}`);
      throw error;
    }
    return { output: input.text };
  },
});

const plan = defineTool({
  name: "kit_plan",
  description: "Returns the version that was approved.",
  input: text,
  plan(input) {
    const version = versionOf(input.text);
    return {
      title: input.text,
      asks: [{ permission: "kit_version", patterns: [`${input.text} ${version}`] }],
      version,
    };
  },
  async execute(input, ctx) {
    if (versionOf(input.text) !== ctx.plan.version)
      throw new ChangedAfterApproval(`there is another version of ${input.text}`);
    note(`entered ${input.text}`);
    return { output: `${input.text} ${ctx.plan.version}` };
  },
});

if (wait && poll) {
  const resumeMs = Number(process.env.KIT_RESUME_MS ?? 60_000);
  await serve([echo, write, wait, poll, ask, plan], { resumeMs });
}
