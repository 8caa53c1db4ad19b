import type { JsonObject } from "@bufbuild/protobuf";
import { type Signal, useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { PermissionAction, type PermissionRule } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExplainPermissionResponse } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import type { PlanToolResponse, ToolDefinition } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { actionWord } from "../../view/decisions.ts";
import { boundTo } from "../parts/bound.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { PlanVerdict, RulesVerdict } from "../parts/verdict.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { emptyDraft, noProblems, objectOf, readProblems, readSchema } from "../schema-form/field.ts";
import { InputForm } from "../schema-form/input-form.tsx";
import { isSend } from "../shell/keys.ts";
import { failureText, useLoaded } from "../shell/load.ts";
import { type PageProps, ProblemText } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { AgentPicker, PlacePicker, type PolicyPlace } from "./place.tsx";

/** Explains whether the agent may run a command line. */
function ExplainCommand(props: QuestionProps) {
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
            {...boundTo(command)}
            onKeyDown={(event) => isSend(event) && event.currentTarget.form?.requestSubmit()}
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
function ExplainCall(props: QuestionProps) {
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
      <ProblemText text={tools.problem} />
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

/** Asks a question; its answer is dropped once the agent, the session or the rules change, or another one was asked. */
function useQuestion<T>(props: QuestionProps) {
  const { agent, sessionId, rules } = props;
  const nothing = { value: undefined, problem: "", asked: [], of: "" };
  const answer = useSignal<{ value?: T | undefined; problem: string; asked: readonly string[]; of: string }>(nothing);
  const round = useRef(0);
  const of = JSON.stringify([agent, sessionId, rules]);
  const ask = async (words: readonly string[], send: () => Promise<T>) => {
    round.current += 1;
    const own = round.current;
    const asked = [...words, ...flagsOf(props)];
    const answered = await send().then(
      (value) => ({ value, problem: "" }),
      (error: unknown) => ({ problem: failureText(error) }),
    );
    if (own === round.current) answer.value = { ...answered, asked, of };
  };
  return { ...(answer.value.of === of ? answer.value : nothing), ask };
}

/** Plans a call. */
function usePlan(props: QuestionProps, tool: string) {
  const { connection, agent, sessionId, rules } = props;
  const { value: plan, problem, asked, ask } = useQuestion<PlanToolResponse>(props);
  const planCall = (input: JsonObject) =>
    ask(["plan", tool, JSON.stringify(input)], () =>
      connection.tools.planTool({ tool, input, agent, sessionId, rules: [...rules] }),
    );
  return { plan, problem, asked, ask: planCall };
}

/** Evaluates the rules for patterns as written: paths are not resolved, commands not analysed, grants not checked. */
function ExplainPatterns(props: QuestionProps) {
  const { connection, agent, sessionId, rules } = props;
  const permission = useSignal("edit");
  const patterns = useSignal("");
  const { value: verdict, problem, asked, ask } = useQuestion<ExplainPermissionResponse>(props);
  const explain = (event: Event) => {
    event.preventDefault();
    const question = { permission: permission.value, patterns: patterns.value.split("\n").filter(Boolean) };
    return ask(["explain", question.permission, ...question.patterns], () =>
      connection.permissions.explainPermission({ ...question, agent, sessionId, rules: [...rules] }),
    );
  };
  return (
    <>
      <form class="input-form" onSubmit={(event) => void explain(event)}>
        <label class="labelled">
          <span>Permission</span>
          <input class="mono" required list="permissions" autocapitalize="off" {...boundTo(permission)} />
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
            {...boundTo(patterns)}
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
      <ProblemText text={problem} />
      <RulesVerdict verdict={verdict} />
      {verdict !== undefined && <CopyCommand words={asked} />}
    </>
  );
}

const known = ["bash", "edit", "read", "list", "glob", "grep", "webfetch", "external_directory", "task", "doom_loop"];

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

/** The common part of a question: the agent, the session and the rules to try. */
interface QuestionProps {
  connection: ConsoleConnection;
  agent: string;
  /** Empty for a question outside sessions. */
  sessionId: string;
  /** Evaluated as if they were the last rules of the configuration. */
  rules: readonly TypedRule[];
}

/** The flags of `toolgate` that ask the same question. */
function flagsOf({ agent, sessionId, rules }: QuestionProps): readonly string[] {
  return [
    ...(agent === "" ? [] : ["--agent", agent]),
    ...(sessionId === "" ? [] : ["--session", sessionId]),
    ...rules.flatMap(({ permission, pattern, action }) => ["--rule", `${permission} ${pattern} ${actionWord(action)}`]),
  ];
}

/** A rule as it is typed. */
type TypedRule = Pick<PermissionRule, "permission" | "pattern" | "action">;

/** The fields of a hypothetical rule, to see its effect. */
function RuleInput({ rule }: { rule: Signal<TypedRule> }) {
  const set = (change: Partial<TypedRule>) => {
    rule.value = { ...rule.value, ...change };
  };
  return (
    <details class="what-if">
      <summary>Try one more rule</summary>
      <div class="pickers">
        <label class="labelled">
          <span>Rule’s permission</span>
          <input
            class="mono"
            autocapitalize="off"
            value={rule.value.permission}
            onInput={({ currentTarget }) => set({ permission: currentTarget.value })}
          />
        </label>
        <label class="labelled">
          <span>Rule’s pattern</span>
          <input
            class="mono"
            autocapitalize="off"
            placeholder="npm *"
            value={rule.value.pattern}
            onInput={({ currentTarget }) => set({ pattern: currentTarget.value })}
          />
        </label>
        <label class="labelled">
          <span>Rule’s action</span>
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
