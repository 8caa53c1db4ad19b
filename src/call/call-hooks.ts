import type { JsonObject } from "@bufbuild/protobuf";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { ExpandedAsk } from "../policy/model.ts";
import type { HookChain } from "../tool/hooks.ts";
import type { Plan } from "../tool/tool.ts";
import { inputOf } from "./state.ts";

/** What people and models are shown of an end. */
export interface Shown {
  title: string;
  output: string;
  metadata: JsonObject;
}

/** What plugins' hooks say of one call. Those before its body are asked once, whoever holds the call: what they say is kept. */
export type CallHooks = ReturnType<typeof createCallHooks>;

/** What hooks have said of a call: of the environment in each folder, and of each question. */
interface Said {
  environments: Record<string, Record<string, string>>;
  answers: Record<string, "ask" | "allow" | "deny">;
}

/**
 * Makes them. `said` is what was kept, `keep` keeps it anew; `newId` and `now` are for what a hook is told of an ask that is
 * not opened yet.
 */
export function createCallHooks(
  hooks: HookChain,
  { tool, sessionId, messageId, callId }: ToolPart,
  options: { said?: string | undefined; keep(said: string): Promise<void>; newId(): string; now(): number },
) {
  const { keep, newId, now } = options;
  const call = { tool, sessionID: sessionId, callID: callId };
  const said: Said = { environments: {}, answers: {}, ...(options.said && JSON.parse(options.said)) };
  let kept = options.said;

  /** Before anything rests on what was said it is kept: whoever takes the call over does not ask again. */
  async function settle(): Promise<void> {
    const text = JSON.stringify(said);
    if (text === kept) return;
    await keep(text);
    kept = text;
  }

  // What a hook says is about this question at this digest, and nothing else.
  const nameOf = (digest: string, { permission, patterns }: ExpandedAsk) =>
    JSON.stringify([digest, permission, patterns]);

  return {
    /** The input as the hooks before the call leave it; undefined if there are none. */
    async before(input: JsonObject): Promise<JsonObject | undefined> {
      if (!hooks.has("tool.execute.before")) return undefined;
      return (await hooks.run("tool.execute.before", call, { args: structuredClone(input) })).args;
    },

    /** What is added to the environment of commands in a folder. */
    async environment(cwd: string): Promise<Record<string, string>> {
      const known = said.environments[cwd];
      if (known === undefined && !hooks.has("shell.env")) return {};
      const about = { cwd, sessionID: sessionId, callID: callId };
      const env = known ?? (await hooks.run("shell.env", about, { env: {} })).env;
      said.environments[cwd] = env;
      await settle();
      return env;
    },

    /** Whether a hook has allowed this. */
    allows: (digest: string, question: ExpandedAsk) => said.answers[nameOf(digest, question)] === "allow",

    /** What hooks say to a question before people are asked. */
    async decide(digest: string, question: ExpandedAsk, plan: Plan): Promise<"ask" | "allow" | "deny"> {
      const name = nameOf(digest, question);
      const known = said.answers[name];
      if (known !== undefined) {
        await settle();
        return known;
      }
      if (!hooks.has("permission.ask")) return "ask";
      const { permission, patterns } = question;
      const metadata = plan.asks.find((ask) => ask.permission === permission)?.metadata;
      const about = { id: newId(), type: permission, pattern: [...patterns], messageID: messageId, title: plan.title };
      const { status } = await hooks.run(
        "permission.ask",
        { ...about, sessionID: sessionId, callID: callId, metadata: { ...metadata, tool }, time: { created: now() } },
        { status: "ask" },
      );
      said.answers[name] = status;
      await settle();
      return status;
    },

    /** What the hooks after a body leave of what is shown. The sizes of the output stay what they are. */
    async after(part: ToolPart, status: "completed" | "error", shown: Shown): Promise<Shown> {
      if (!hooks.has("tool.execute.after")) return shown;
      const args = structuredClone(inputOf(part));
      const left = await hooks.run("tool.execute.after", { ...call, args, status }, structuredClone(shown));
      const { truncated, originalSize, truncatedSize, outputPath } = shown.metadata;
      const sizes = Object.entries({ truncated, originalSize, truncatedSize, outputPath });
      const kept = sizes.flatMap(([name, value]) => (value === undefined ? [] : [[name, value] as const]));
      return { title: left.title, output: left.output, metadata: { ...left.metadata, ...Object.fromEntries(kept) } };
    },
  };
}
