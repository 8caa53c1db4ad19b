import { actionWord } from "../../view/decisions.ts";
import type { ConsoleConnection } from "../stream/connection.ts";
import type { TypedRule } from "./rule-input.tsx";

/** The common part of a question: the agent, the session and the rules to try. */
export interface QuestionProps {
  connection: ConsoleConnection;
  agent: string;
  /** Empty for a question outside sessions. */
  sessionId: string;
  /** Evaluated as if they were the last rules of the configuration. */
  rules: readonly TypedRule[];
}

/** The flags of `toolgate` that ask the same question. */
export function flagsOf({ agent, sessionId, rules }: QuestionProps): readonly string[] {
  return [
    ...(agent === "" ? [] : ["--agent", agent]),
    ...(sessionId === "" ? [] : ["--session", sessionId]),
    ...rules.flatMap(({ permission, pattern, action }) => ["--rule", `${permission} ${pattern} ${actionWord(action)}`]),
  ];
}
