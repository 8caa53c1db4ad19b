import * as z from "zod";

const textChunk = z.object({
  sessionUpdate: z.literal("agent_message_chunk"),
  content: z.object({ type: z.literal("text"), text: z.string() }),
});

const maxCharacters = 524_288;

/** Text of the agent since its last use of a tool, which is its answer at the end of the turn. */
export interface AgentAnswer {
  /** Adds the text of an update; returns false for an update of another kind. */
  add(update: unknown): boolean;
  /** Starts again, since what was written was about the next step; keeps it until more is written. */
  interrupt(): void;
  text(): string;
}

/** Creates an answer without text. */
export function createAnswer(): AgentAnswer {
  let text = "";
  let isInterrupted = false;
  return {
    add(update) {
      const chunk = textChunk.safeParse(update).data;
      if (chunk === undefined) return false;
      if (isInterrupted) text = "";
      isInterrupted = false;
      // More is cut: a calling model sees a bounded output in any case.
      if (text.length < maxCharacters) text += chunk.content.text.slice(0, maxCharacters - text.length);
      return true;
    },
    interrupt() {
      isInterrupted = true;
    },
    text: () => text.trim(),
  };
}
