import { useSignal } from "@preact/signals";
import type { ExplainPermissionResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { RulesVerdict } from "../parts/verdict.tsx";
import { failureText } from "../shell/load.ts";
import { flagsOf, type QuestionProps } from "./question.ts";

/** Evaluates the rules for patterns as written: paths are not resolved, commands not analysed, grants not checked. */
export function ExplainPatterns(props: QuestionProps) {
  const { connection, agent, sessionId, rules } = props;
  const permission = useSignal("edit");
  const patterns = useSignal("");
  const answer = useSignal<{ verdict?: ExplainPermissionResponse; problem: string; asked: readonly string[] }>({
    problem: "",
    asked: [],
  });
  const ask = async (event: Event) => {
    event.preventDefault();
    const question = {
      permission: permission.value,
      patterns: patterns.value.split("\n").filter((line) => line !== ""),
      agent,
      sessionId,
      rules: [...rules],
    };
    const asked = ["explain", question.permission, ...question.patterns, ...flagsOf(props)];
    try {
      answer.value = { verdict: await connection.permissions.explainPermission(question), problem: "", asked };
    } catch (error) {
      answer.value = { problem: failureText(error), asked };
    }
  };
  const { verdict, problem, asked } = answer.value;
  return (
    <>
      <form class="input-form" onSubmit={(event) => void ask(event)}>
        <label class="labelled">
          <span>Permission</span>
          <input
            class="mono"
            required
            list="permissions"
            autocapitalize="off"
            value={permission}
            onInput={({ currentTarget }) => (permission.value = currentTarget.value)}
          />
          <datalist id="permissions">
            {known.map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
        </label>
        <label class="labelled">
          <span>Patterns, one per line</span>
          <textarea
            class="mono"
            required
            rows={3}
            spellcheck={false}
            autocapitalize="off"
            placeholder="src/main.ts"
            value={patterns}
            onInput={({ currentTarget }) => (patterns.value = currentTarget.value)}
          />
        </label>
        <p class="hint">
          Patterns are matched as written: paths are not resolved, commands are not analysed, grants are not checked.
        </p>
        <div class="actions">
          <button type="submit" class="primary">
            Explain
          </button>
        </div>
      </form>
      {problem !== "" && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      <RulesVerdict verdict={verdict} />
      {verdict !== undefined && <CopyCommand words={asked} />}
    </>
  );
}

const known = ["bash", "edit", "read", "list", "glob", "grep", "webfetch", "external_directory", "task", "doom_loop"];
