import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { PolicyChange, SimulationSummary } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { actionWord, decisionWords } from "../../view/decisions.ts";
import { countOf } from "../../view/quantities.ts";
import { changeWords, refusedIn, simulationLines } from "../../view/simulation.ts";
import { boundTo } from "../parts/bound.ts";
import { visibleLines, visibleText } from "../parts/visible-text.ts";
import { isSend } from "../shell/keys.ts";
import { failureText } from "../shell/load.ts";
import type { PageProps } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { AgentPicker, NoRole } from "./place.tsx";

/** Tries the rules of a file on recorded decisions. Nothing is applied. */
export function TryRules({ connection }: PageProps) {
  const text = useSignal("");
  const days = useSignal("30");
  const agent = useSignal("");
  const { state, run, cancel } = useSimulation(connection);
  const { isRunning, read, problem, changes, summary } = state;
  const outcome = useRef<HTMLDivElement>(null);
  // The result is below the form, often below the screen.
  useEffect(() => {
    if (summary !== undefined) outcome.current?.scrollIntoView();
  }, [summary]);
  if (!connection.may("approver", "watcher", "admin")) return <NoRole what="try rules" />;
  return (
    <section aria-label="Try rules" aria-busy={isRunning}>
      <form
        class="input-form"
        onSubmit={(event) => {
          event.preventDefault();
          if (!isRunning) void run(text.value, Number(days.value), agent.value);
        }}
      >
        <p class="hint">
          See which recorded decisions the rules of a file would change. Nothing is applied. Only its tables{" "}
          <code>permission</code>, <code>agent</code> and <code>preset</code> leave this page.
        </p>
        <label class="labelled">
          <span>Configuration file</span>
          <input
            type="file"
            accept=".toml"
            onChange={async ({ currentTarget: { files } }) => {
              const file = files?.[0];
              if (file !== undefined) text.value = await file.text();
            }}
          />
        </label>
        <label class="labelled">
          <span>Its text</span>
          <textarea
            class="mono"
            required
            rows={6}
            spellcheck={false}
            autocapitalize="off"
            placeholder={'[permission.bash]\n"npm test *" = "allow"'}
            {...boundTo(text)}
            onKeyDown={(event) => isSend(event) && event.currentTarget.form?.requestSubmit()}
          />
        </label>
        <div class="pickers">
          <label class="labelled">
            <span>Days</span>
            <input type="number" required min={1} max={3650} {...boundTo(days)} />
          </label>
          <AgentPicker connection={connection} agent={agent} first="all" />
        </div>
        <div class="actions">
          <button type="submit" class="primary" aria-disabled={isRunning}>
            Try <kbd>Ctrl ↵</kbd>
          </button>
          {isRunning && (
            <button type="button" onClick={cancel}>
              Cancel
            </button>
          )}
        </div>
      </form>
      <div ref={outcome} class="verdict-box" role="status" aria-label="What would change">
        {isRunning && <p>{read > 0 ? `${countOf(read, "decision")} read…` : "Reading the decisions…"}</p>}
        {summary !== undefined && <Outcome summary={summary} changes={changes} />}
      </div>
      {problem !== "" && (
        <pre class="problem" role="alert">
          {visibleLines(problem)}
        </pre>
      )}
      {summary?.unfaithful === 0 && <Changes changes={changes} />}
    </section>
  );
}

interface State {
  readonly isRunning: boolean;
  /** The number of decisions that the service has read. */
  readonly read: number;
  readonly problem: string;
  readonly changes: readonly PolicyChange[];
  readonly summary: SimulationSummary | undefined;
}

const idle: State = { isRunning: false, read: 0, problem: "", changes: [], summary: undefined };

/** Runs one simulation at a time; it ends with the page. */
function useSimulation({ permissions }: ConsoleConnection) {
  const state = useSignal(idle);
  const running = useMemo<{ over: AbortController | undefined }>(() => ({ over: undefined }), []);
  const cancel = () => {
    running.over?.abort();
    state.value = idle;
  };
  useEffect(() => cancel, []);
  async function run(text: string, days: number, agent: string): Promise<void> {
    const candidateToml = tablesOfRules(text);
    if (candidateToml.trim() === "") {
      state.value = { ...idle, problem: "The file has no rules; write them below [permission]." };
      return;
    }
    const over = new AbortController();
    running.over = over;
    state.value = { ...idle, isRunning: true };
    const changes: PolicyChange[] = [];
    try {
      const request = { candidateToml, from: Date.now() - days * 86_400_000, agent };
      for await (const { kind } of permissions.simulatePolicy(request, over)) {
        if (over.signal.aborted) return;
        if (kind.case === "progress") state.value = { ...state.value, read: kind.value.decisions };
        if (kind.case === "change") changes.push(kind.value);
        if (kind.case === "summary") state.value = { ...idle, changes, summary: kind.value };
      }
    } catch (error) {
      if (!over.signal.aborted) state.value = { ...idle, problem: failureText(error) };
    }
  }
  return { state: state.value, run, cancel };
}

/** The result in a line, whether it can be relied on, and the counts. */
function Outcome({ summary, changes }: { summary: SimulationSummary; changes: readonly PolicyChange[] }) {
  const { unfaithful, unfaithfulExample, changed, judged } = summary;
  if (unfaithful > 0) {
    return (
      <p class="warning">
        The result cannot be relied on: {countOf(unfaithful, "decision")} of the rules in force would come out otherwise
        by the same rules, such as {visibleText(unfaithfulExample)}
      </p>
    );
  }
  const refused = changes.reduce((sum, change) => sum + refusedIn(change), 0);
  return (
    <>
      <p class="answer" data-action={refused > 0 ? "deny" : changed > 0 || judged === 0 ? "ask" : "allow"}>
        {refused > 0
          ? `${countOf(refused, "decision")} would be allowed that the rules denied or people rejected.`
          : changed > 0
            ? `${countOf(changed, "decision")} would change.`
            : judged > 0
              ? "No decision would change."
              : "No recorded decision could be judged."}
      </p>
      {judged > 0 && (
        <p class="hint">By the rules in force {countOf(judged, "decision")} come out as recorded: 0 changes.</p>
      )}
      <ul class="plain">
        {simulationLines(summary, visibleText).map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </>
  );
}

const pageSize = 50;

function Changes({ changes }: { changes: readonly PolicyChange[] }) {
  const count = useSignal(pageSize);
  const shown = changes.slice(0, count.value);
  const [refused, others] = [true, false].map((wanted) => shown.filter((change) => refusedIn(change) > 0 === wanted));
  return (
    <>
      <ListOfChanges title="Denied or rejected, and would be allowed" changes={refused ?? []} />
      <ListOfChanges title="Other changes" changes={others ?? []} />
      {changes.length > count.value && (
        <button type="button" onClick={() => (count.value += pageSize)}>
          Show more: {changes.length - count.value} are left
        </button>
      )}
    </>
  );
}

function ListOfChanges({ title, changes }: { title: string; changes: readonly PolicyChange[] }) {
  if (changes.length === 0) return null;
  return (
    <>
      <h2>{title}</h2>
      <ul class="cards">
        {changes.map((change, i) => (
          <li key={i} class="card">
            <p class="card-head">
              <b class="action" data-action={refusedIn(change) > 0 ? "deny" : actionWord(change.after)}>
                {changeWords(change, visibleText)}
              </b>
            </p>
            <ul class="plain mono">
              {change.examples.map((example) => (
                <li key={example}>{visibleText(example)}</li>
              ))}
            </ul>
            <dl class="facts">
              <dt>Now</dt>
              <dd>{change.old && decisionWords(change.old, visibleText)}</dd>
              <dt>Then</dt>
              <dd>{change.new && decisionWords(change.new, visibleText)}</dd>
            </dl>
          </li>
        ))}
      </ul>
    </>
  );
}

const tables: ReadonlySet<string> = new Set(["permission", "agent", "preset"]);

/**
 * Blanks all lines of a configuration but its tables of rules: tokens and passwords stay on the page, and a line that the
 * service names is the line of the file.
 */
function tablesOfRules(text: string): string {
  let [isRule, hasTable, quotes] = [false, false, ""];
  return text
    .split("\n")
    .map((line) => {
      if (quotes === "") {
        const table = /^\s*\[{1,2}\s*(["']?)([\w-]+)\1\s*[.\]](?!\s*,)/.exec(line)?.[2];
        const key = hasTable ? undefined : /^\s*(["']?)([\w-]+)\1\s*[.=]/.exec(line)?.[2];
        const name = table ?? key;
        hasTable ||= table !== undefined;
        if (name !== undefined) isRule = tables.has(name);
      }
      for (const [mark] of line.matchAll(/"""|'''/g)) quotes = quotes === "" ? mark : quotes === mark ? "" : quotes;
      return isRule ? line : "";
    })
    .join("\n");
}
