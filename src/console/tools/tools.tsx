import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { ToolDefinition, ToolProblem, ToolStats } from "../../../gen/opencode/tool/v1/tool_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { countOf } from "../../view/quantities.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useLoaded } from "../shell/load.ts";
import { Empty, type PageProps } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import { createHandSession } from "./hand-session.ts";
import { ToolView } from "./tool-view.tsx";

/** The tools of an agent on the left, the selected one with a form to call it on the right. */
export function Tools({ connection, route, feed }: PageProps) {
  const { agents } = connection.server;
  const agent = useSignal(agents.includes("build") ? "build" : (agents[0] ?? ""));
  const model = useSignal({ providerId: "", modelId: "" });
  const session = useMemo(() => createHandSession(connection), [connection]);
  useEffect(() => session.close, [session]);
  const [name] = route.chosen.value;
  const listed = useLoaded(
    (signal) => {
      const request = { agent: agent.value, ...model.value };
      return Array.fromAsync(pagesOf((page) => connection.tools.listTools({ ...request, ...page }, { signal })));
    },
    [connection, agent.value, model.value],
  );
  const stats = useLoaded(
    async (signal) =>
      connection.may("approver", "watcher", "admin") ? await connection.tools.getToolStats({}, { signal }) : undefined,
    [connection, name],
  );
  const statsOf = (tool: string) => stats.value?.tools.find((one) => one.tool === tool);
  const tools = listed.value?.flatMap((page) => page.tools) ?? [];
  const tool = tools.find((one) => one.name === name) ?? (name === undefined ? tools[0] : undefined);
  return (
    <div class="split" data-chosen={name !== undefined}>
      <section class="pane list-pane" aria-label="Tools" aria-busy={listed.isLoading}>
        <header class="pane-head">
          <h1>Tools</h1>
          <p class="hint">{tools.length} available</p>
        </header>
        <div class="tool-filter">
          <label class="labelled">
            <span>Agent</span>
            <select value={agent.value} onChange={({ currentTarget }) => (agent.value = currentTarget.value)}>
              {agents.map((one) => (
                <option key={one} value={one}>
                  {visibleText(one)}
                </option>
              ))}
            </select>
          </label>
          <details>
            <summary>For a model</summary>
            <ModelInput title="Provider" onChange={(providerId) => (model.value = { ...model.value, providerId })} />
            <ModelInput title="Model" onChange={(modelId) => (model.value = { ...model.value, modelId })} />
          </details>
          {listed.problem !== "" && (
            <p class="problem" role="alert">
              {listed.problem}
            </p>
          )}
          <NotLoaded problems={listed.value?.flatMap((page) => page.problems) ?? []} />
        </div>
        <ul class="tool-list">
          {tools.map((one) => (
            <li key={one.name}>
              <ToolRow tool={one} isCurrent={one === tool} stats={statsOf(one.name)} />
            </li>
          ))}
        </ul>
      </section>
      <section class="pane detail-pane" aria-label="Tool">
        {tool !== undefined && (
          <ToolView
            key={`${tool.name} ${tool.definitionId}`}
            tool={tool}
            stats={statsOf(tool.name)}
            agent={agent.value}
            connection={connection}
            session={session.open}
            asks={feed}
          />
        )}
        {tool === undefined && !listed.isLoading && (
          <Empty title="Tool not found">
            This agent has no tool of that name. <a href="#/tools">Show all tools</a>
          </Empty>
        )}
      </section>
    </div>
  );
}

function ModelInput({ title, onChange }: { title: string; onChange: (value: string) => void }) {
  return (
    <label class="labelled">
      <span>{title}</span>
      <input autocapitalize="off" onChange={({ currentTarget }) => onChange(currentTarget.value.trim())} />
    </label>
  );
}

function NotLoaded({ problems }: { problems: readonly ToolProblem[] }) {
  if (problems.length === 0) return null;
  return (
    <details class="warning" open>
      <summary>
        {problems.length === 1 ? "One file was not loaded" : `${problems.length} files were not loaded`}
      </summary>
      <ul>
        {problems.map(({ path, line, reason }) => (
          <li key={path}>
            <code>
              {visibleText(path)}
              {line > 0 && `:${line}`}
            </code>{" "}
            {visibleText(reason)}
          </li>
        ))}
      </ul>
    </details>
  );
}

function ToolRow({
  tool: { name, description },
  isCurrent,
  stats,
}: {
  tool: ToolDefinition;
  isCurrent: boolean;
  stats: ToolStats | undefined;
}) {
  const [sentence = ""] = /^.*?(?:\.(?=\s)|$)/m.exec(description) ?? [];
  return (
    <a class="tool-row" href={`#${pathOf("tools", name)}`} aria-current={isCurrent ? "true" : undefined}>
      <b class="mono">{visibleText(name)}</b>
      <small>{visibleText(sentence)}</small>
      {stats !== undefined && (
        <small>
          {countOf(stats.count, "call")}
          {stats.errors > 0n && `, ${stats.errors} failed`}
        </small>
      )}
    </a>
  );
}
