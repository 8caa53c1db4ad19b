import { useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { PermissionAction } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { PageProps } from "../shell/page.tsx";
import { ExplainCall, ExplainCommand } from "./explain-call.tsx";
import { ExplainPatterns } from "./explain-patterns.tsx";
import { AgentPicker, PlacePicker, type PolicyPlace } from "./place.tsx";
import type { QuestionProps } from "./question.ts";
import { RuleInput, type TypedRule } from "./rule-input.tsx";

const questions: Readonly<Record<string, { title: string; Question: FunctionComponent<QuestionProps> }>> = {
  command: { title: "run a command", Question: ExplainCommand },
  call: { title: "call a tool", Question: ExplainCall },
  patterns: { title: "have a permission", Question: ExplainPatterns },
};

/** Answers "may this agent …?" without running anything. */
export function Explain({ connection }: PageProps) {
  const agent = useSignal("");
  const place = useSignal<PolicyPlace>({ case: "workspace", value: "default" });
  // A dry run reads the workspace on behalf of the principal, which the role watcher does not permit.
  const names = Object.keys(questions).filter(
    (name) => name === "patterns" || connection.may("caller", "approver", "admin"),
  );
  const rule = useSignal<TypedRule>({ permission: "bash", pattern: "", action: PermissionAction.ALLOW });
  const chosen = useSignal(names[0] ?? "patterns");
  const Question = questions[chosen.value]?.Question ?? ExplainPatterns;
  const sessionId = place.value.case === "sessionId" ? place.value.value : "";
  return (
    <section aria-label="Explain">
      <p class="hint">See what would happen. Nothing runs and nothing is recorded.</p>
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
