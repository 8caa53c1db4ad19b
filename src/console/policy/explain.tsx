import { type Signal, useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { PermissionAction, type PermissionRule } from "../../../gen/web/opencode/tool/v1/permission_pb.ts";
import type { Connection } from "../connection.ts";
import type { PageProps } from "../page.tsx";
import { actionWord } from "../words.ts";
import { ExplainCall, ExplainCommand } from "./explain-call.tsx";
import { ExplainPatterns } from "./explain-patterns.tsx";
import { AgentPicker, type Place, PlacePicker } from "./place.tsx";

type Rule = Pick<PermissionRule, "permission" | "pattern" | "action">;

/** A question that is not finished: who would act, and where. */
export interface QuestionProps {
  connection: Connection;
  agent: string;
  /** Empty: in no session. */
  sessionId: string;
  /** Tried as if they were the last ones of the configuration. */
  rules: readonly Rule[];
}

const questions: Readonly<Record<string, { title: string; Question: FunctionComponent<QuestionProps> }>> = {
  command: { title: "run a command", Question: ExplainCommand },
  call: { title: "call a tool", Question: ExplainCall },
  patterns: { title: "have a permission", Question: ExplainPatterns },
};

/** Answers "may this agent …?" without running anything. */
export function Explain({ connection }: PageProps) {
  const agent = useSignal("");
  const place = useSignal<Place>({ case: "workspace", value: "default" });
  // Dry runs read the workspace on the asker's behalf, which merely watching does not cover.
  const names = Object.keys(questions).filter(
    (name) => name === "patterns" || connection.may("caller", "approver", "admin"),
  );
  const rule = useSignal<Rule>({ permission: "bash", pattern: "", action: PermissionAction.ALLOW });
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

/** A rule that is not there, to see what it would change. */
function RuleInput({ rule }: { rule: Signal<Rule> }) {
  const set = (change: Partial<Rule>) => {
    rule.value = { ...rule.value, ...change };
  };
  return (
    <details class="what-if">
      <summary>What if there were one more rule?</summary>
      <div class="pickers">
        <label class="labelled">
          <span>Its permission</span>
          <input
            class="mono"
            autocapitalize="off"
            value={rule.value.permission}
            onInput={({ currentTarget }) => set({ permission: currentTarget.value })}
          />
        </label>
        <label class="labelled">
          <span>Its pattern</span>
          <input
            class="mono"
            autocapitalize="off"
            placeholder="npm *"
            value={rule.value.pattern}
            onInput={({ currentTarget }) => set({ pattern: currentTarget.value })}
          />
        </label>
        <label class="labelled">
          <span>Its action</span>
          <select
            value={String(rule.value.action)}
            onChange={({ currentTarget }) =>
              set({ action: actions.find((action) => String(action) === currentTarget.value) ?? rule.value.action })
            }
          >
            {actions.map((action) => (
              <option key={action} value={String(action)}>
                {actionWord(action)}
              </option>
            ))}
          </select>
        </label>
      </div>
    </details>
  );
}

const actions = [PermissionAction.ALLOW, PermissionAction.ASK, PermissionAction.DENY] as const;
