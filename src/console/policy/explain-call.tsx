import type { JsonObject } from "@bufbuild/protobuf";
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import type { PlanToolResponse, ToolDefinition } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { PlanVerdict } from "../parts/verdict.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { emptyDraft, noProblems, readProblems } from "../schema-form/draft.ts";
import { objectOf, readSchema } from "../schema-form/field.ts";
import { InputForm } from "../schema-form/input-form.tsx";
import { failureText, useLoaded } from "../shell/load.ts";
import { flagsOf, type QuestionProps } from "./question.ts";

/** Explains whether the agent may run a command line. */
export function ExplainCommand(props: QuestionProps) {
  const command = useSignal("");
  const { plan, problem, ask, asked } = usePlan(props, "bash");
  return (
    <>
      <form
        class="input-form"
        onSubmit={(event) => {
          event.preventDefault();
          void ask({ command: command.value });
        }}
      >
        <label class="labelled">
          <span>Command</span>
          <textarea
            class="mono"
            required
            rows={2}
            spellcheck={false}
            autocapitalize="off"
            placeholder="git push origin main && npm test"
            value={command}
            onInput={({ currentTarget }) => (command.value = currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form?.requestSubmit();
            }}
          />
        </label>
        <div class="actions">
          <button type="submit" class="primary">
            Explain <kbd>Ctrl ↵</kbd>
          </button>
        </div>
      </form>
      <Answer plan={plan} problem={problem} asked={asked} />
    </>
  );
}

/** Explains whether the agent may make a call. */
export function ExplainCall(props: QuestionProps) {
  const { connection, agent, sessionId } = props;
  const chosen = useSignal("");
  const tools = useLoaded(
    async (signal) => {
      const list = (page: object) => connection.tools.listTools({ ...page, agent, sessionId }, { signal });
      return (await Array.fromAsync(pagesOf(list))).flatMap((page) => page.tools);
    },
    [connection, agent, sessionId],
  );
  const tool = tools.value?.find(({ name }) => name === chosen.value) ?? tools.value?.[0];
  return (
    <>
      <label class="labelled">
        <span>Tool</span>
        <select
          value={tool?.name ?? ""}
          aria-busy={tools.isLoading}
          onChange={({ currentTarget }) => (chosen.value = currentTarget.value)}
        >
          {tools.value?.map(({ name }) => (
            <option key={name} value={name}>
              {visibleText(name)}
            </option>
          ))}
        </select>
      </label>
      {tools.problem !== "" && (
        <p class="problem" role="alert">
          {tools.problem}
        </p>
      )}
      {tool !== undefined && <CallQuestion key={tool.name} {...props} tool={tool} />}
    </>
  );
}

function CallQuestion({ tool, ...props }: QuestionProps & { tool: ToolDefinition }) {
  const field = useMemo(() => readSchema(tool.inputSchema ?? {}), [tool.definitionId]);
  const input = useSignal<JsonObject>(objectOf(emptyDraft(field)));
  const { plan, problem, ask, asked } = usePlan(props, tool.name);
  const problems = useMemo(() => (problem === "" ? noProblems : readProblems(problem, field)), [problem, field]);
  return (
    <>
      <InputForm field={field} input={input} problems={problems} onSubmit={() => void ask(input.value)}>
        <button type="submit" class="primary">
          Explain
        </button>
      </InputForm>
      <Answer plan={plan} problem="" asked={asked} />
    </>
  );
}

function Answer({
  plan,
  problem,
  asked,
}: {
  plan: PlanToolResponse | undefined;
  problem: string;
  asked: readonly string[];
}) {
  return (
    <>
      {problem !== "" && (
        <pre class="problem" role="alert">
          {problem}
        </pre>
      )}
      <PlanVerdict plan={plan} />
      {plan !== undefined && <CopyCommand words={asked} />}
    </>
  );
}

/** Plans a call; the result is cleared when the agent, the session or the rules change. */
function usePlan(props: QuestionProps, tool: string) {
  const { connection, agent, sessionId, rules } = props;
  const answer = useSignal<{ plan?: PlanToolResponse; problem: string; asked: readonly string[]; of: string }>({
    problem: "",
    asked: [],
    of: "",
  });
  const of = JSON.stringify([agent, sessionId, rules]);
  const ask = async (input: JsonObject) => {
    const asked = ["plan", tool, JSON.stringify(input), ...flagsOf(props)];
    try {
      const plan = await connection.tools.planTool({ tool, input, agent, sessionId, rules: [...rules] });
      answer.value = { plan, problem: "", asked, of };
    } catch (error) {
      answer.value = { problem: failureText(error), asked, of };
    }
  };
  const { plan, problem, asked } = answer.value.of === of ? answer.value : { plan: undefined, problem: "", asked: [] };
  return { plan, problem, asked, ask };
}
