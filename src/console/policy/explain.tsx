import { useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { PermissionAction } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { actionWord } from "../parts/words.ts";
import type { PageProps } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { ExplainCall, ExplainCommand } from "./explain-call.tsx";
import { ExplainPatterns } from "./explain-patterns.tsx";
import { AgentPicker, PlacePicker, type PolicyPlace } from "./place.tsx";
import { RuleInput, type TypedRule } from "./rule-input.tsx";

/** A question that is not finished: who would act, and where. */
export interface QuestionProps {
  connection: ConsoleConnection;
  agent: string;
  /** Empty: in no session. */
  sessionId: string;
  /** Tried as if they were the last ones of the configuration. */
  rules: readonly TypedRule[];
}

const questions: Readonly<Record<string, { title: string; Question: FunctionComponent<QuestionProps> }>> = {
  command: { title: "run a command", Question: ExplainCommand },
  call: { title: "call a tool", Question: ExplainCall },
  patterns: { title: "have a permission", Question: ExplainPatterns },
};

/** Answers "may this agent …?" without running anything. */
export function Explain({ connection }: PageProps) {
  const agent = useSignal("");
  const place = useSignal<PolicyPlace>({ case: "workspace", value: "default" });
  // Dry runs read the workspace on the asker's behalf, which merely watching does not cover.
  const names = Object.keys(questions).filter(
    (name) => name === "patterns" || connection.may("caller", "approver", "admin"),
  );
  const rule = useSignal<TypedRule>({ permission: "bash", pattern: "", action: PermissionAction.ALLOW });
  const chosen = useSignal(names[0] ?? "patterns");
  const Question = questions[chosen.value]?.Question ?? ExplainPatterns;
  const sessionId = place.value.case === "sessionId" ? place.value.value : "";
  return (
    <section aria-label="Explain">
      <p class="hint">Ask what would happen. Nothing is run and nothing is recorded.</p>
      <div class="pickers">
        <AgentPicker connection={connection} agent={agent} />
        <PlacePicker connection={connection} workspaces={["default"]} place={place} />
      </div>
      <fieldset class="segments">
        <legend>May the agent…</legend>
        {names.map((name) => (
          <label key={name}>
            <input
              type="radio"
              name="question"
              checked={chosen.value === name}
              onChange={() => (chosen.value = name)}
            />
            {questions[name]?.title}
          </label>
        ))}
      </fieldset>
      <RuleInput rule={rule} />
      <Question
        connection={connection}
        agent={agent.value}
        sessionId={sessionId}
        rules={rule.value.pattern === "" ? [] : [rule.value]}
      />
    </section>
  );
}

/** The flags with which `toolgate` asks the same. */
export function flagsOf({ agent, sessionId, rules }: QuestionProps): readonly string[] {
  return [
    ...(agent === "" ? [] : ["--agent", agent]),
    ...(sessionId === "" ? [] : ["--session", sessionId]),
    ...rules.flatMap(({ permission, pattern, action }) => ["--rule", `${permission} ${pattern} ${actionWord(action)}`]),
  ];
}
