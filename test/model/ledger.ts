import * as z from "zod";
import { defineTool } from "../../src/tool/define-tool.ts";
import { ToolFailure } from "../../src/tool/errors.ts";
import type { DefinedTool, ToolContext, ToolResult } from "../../src/tool/tool.ts";
import type { End } from "./model.ts";

/** Record of what the tools of a test did, outside of every store. */
export type Ledger = ReturnType<typeof createLedger>;

export function createLedger(onEntry: () => void) {
  const entries: string[] = [];
  const held = new Map<string, (end: End) => void>();
  let description = "Records that it was entered.";
  return {
    /** Each entry of a body: `session/call`. */
    entries,
    /** Ends a waiting body; does nothing if none waits. */
    release: (id: string, end: End) => held.get(id)?.(end),
    /** Has replicas that start from now on describe their tools otherwise. */
    upgrade() {
      description += " Again.";
    },

    /**
     * Returns the tools of one replica: `open` is allowed, `ask` asks, `hold` is allowed and waits to be released. `look` has no
     * effects: its entries are not in the ledger, since it may be entered for calls that are refused. `parent` makes a call of `ask`.
     */
    tools(gone: AbortSignal): DefinedTool[] {
      const tool = (
        name: string,
        permissions: readonly string[],
        execute: (ctx: ToolContext) => ToolResult | Promise<ToolResult>,
      ) =>
        defineTool({
          name,
          description,
          input: z.object({ key: z.string() }),
          plan: ({ key }) => ({
            title: key,
            asks: permissions.map((permission) => ({ permission, patterns: [key] })),
          }),
          execute(_input, ctx) {
            entries.push(`${ctx.sessionId}/${ctx.callId}`);
            onEntry();
            return execute(ctx);
          },
        });
      return [
        tool("open", [], () => ({ output: "done" })),
        tool("ask", ["ask"], () => ({ output: "done" })),
        defineTool({
          name: "look",
          description: "Has no effects.",
          input: z.object({ key: z.string() }),
          readOnly: true,
          idempotent: true,
          plan: ({ key }) => ({ title: key, asks: [] }),
          execute: () => ({ output: "done" }),
        }),
        defineTool({
          name: "parent",
          description: "Makes a call. Its entries are not in the ledger, since it may be entered again.",
          input: z.object({ key: z.string() }),
          durable: true,
          plan: ({ key }) => ({ title: key, asks: [] }),
          async execute({ key }, ctx) {
            const [made] = await ctx.calls([{ tool: "ask", input: { key } }], { atomic: false });
            return { output: made?.text ?? "" };
          },
        }),
        tool("hold", [], (ctx) => hold(`${ctx.sessionId}/${ctx.callId}`, AbortSignal.any([ctx.signal, gone]))),
      ];
    },
  };

  async function hold(id: string, stop: AbortSignal): Promise<ToolResult> {
    stop.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<End>();
    stop.addEventListener("abort", () => reject(stop.reason), { once: true });
    held.set(id, resolve);
    try {
      const end = await promise;
      if (end === "FAILED") throw new ToolFailure("The test made it fail.");
      return { output: "done" };
    } finally {
      held.delete(id);
    }
  }
}
