import {
  type Source,
  SourceAcceptance,
  SourceKind,
  SourceState,
  type SourceTool,
} from "../../../gen/opencode/tool/v1/source_service_pb.ts";
import { pagesOf } from "../../core/pages-of.ts";
import { countOf, momentOf, sizeOf } from "../../view/quantities.ts";
import { enumWord } from "../../view/words.ts";
import { countChanges, parseDiff } from "../parts/diff.ts";
import { DiffView } from "../parts/diff-view.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { useAttempt, useLoaded } from "../shell/load.ts";
import { Empty, ListPage, type PageProps, ProblemText } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";

/** The MCP servers and tool processes, with what is offered and not accepted. */
export function SourcesPage({ connection }: PageProps) {
  const sources = useLoaded(
    (signal) => Array.fromAsync(pagesOf((page) => connection.sources.listSources(page, { signal }))),
    [connection],
  );
  const list = sources.value?.flatMap((page) => page.sources);
  return (
    <ListPage title="Sources" list={sources}>
      {list?.length === 0 && <Empty title="No sources">Add a table [mcp.NAME] to the configuration.</Empty>}
      <ul class="cards">
        {list?.map((source) => (
          <SourceCard
            key={source.workspace + source.name}
            source={source}
            connection={connection}
            onAccepted={sources.reload}
          />
        ))}
      </ul>
    </ListPage>
  );
}

/** A server or process: its state, its tools, and a button that accepts what is shown. */
function SourceCard({
  source,
  connection,
  onAccepted,
}: {
  source: Source;
  connection: ConsoleConnection;
  onAccepted: () => void;
}) {
  const { kind, name, origin, workspace, state, since, confinement, memoryBytes, restarts, problem, tools } = source;
  const facts: Readonly<Record<string, string>> = {
    Runs: origin,
    Workspace: workspace,
    Since: momentOf(since),
    Confinement: confinement,
    Memory: memoryBytes > 0n ? sizeOf(Number(memoryBytes)) : "",
    Restarts: restarts > 0 ? String(restarts) : "",
  };
  const isWaiting = tools.some(({ acceptance }) => isNew(acceptance));
  return (
    <li class="card">
      <p class="card-head">
        <b class="mono">{visibleText(name)}</b>
        <span class="mark" data-kind={state >= SourceState.WAITING && state < SourceState.IDLE ? "beyond" : "look"}>
          {enumWord(SourceState, state)}
        </span>
        <small>{kind === SourceKind.TOOL_PROCESS ? "tool process" : "MCP server"}</small>
      </p>
      {problem !== "" && <p class="problem">{visibleText(problem)}</p>}
      <dl class="facts">
        {Object.entries(facts).flatMap(([title, text]) =>
          text === "" ? [] : [<dt key={title}>{title}</dt>, <dd key={text}>{visibleText(text)}</dd>],
        )}
      </dl>
      {tools.length > 0 && (
        <details open={isWaiting}>
          <summary>{countOf(tools.length, "tool")}</summary>
          <ul>
            {tools.map((tool) => (
              <Offered key={tool.name + tool.acceptance} tool={tool} />
            ))}
          </ul>
        </details>
      )}
      {isWaiting && connection.may("approver", "admin") && (
        <Accept source={source} connection={connection} onAccepted={onAccepted} />
      )}
    </li>
  );
}

const isNew = (acceptance: SourceAcceptance) =>
  acceptance === SourceAcceptance.NEW || acceptance === SourceAcceptance.CHANGED;

/** A tool, with its change if that is not accepted. */
function Offered({ tool: { name, acceptance, problem, diff } }: { tool: SourceTool }) {
  const { added, removed } = countChanges(parseDiff(diff));
  return (
    <li>
      <code>{visibleText(name)}</code>{" "}
      {acceptance > SourceAcceptance.ACCEPTED && <span class="mark">{enumWord(SourceAcceptance, acceptance)}</span>}
      {problem !== "" && <span class="problem">{visibleText(problem)}</span>}
      {diff !== "" && <DiffView diff={diff} of={visibleText(name)} counts={{ additions: added, deletions: removed }} />}
    </li>
  );
}

/** Accepts the tools as they are shown: the service refuses if the server offers others by now. */
function Accept({
  source: { name, digest },
  connection,
  onAccepted,
}: {
  source: Source;
  connection: ConsoleConnection;
  onAccepted: () => void;
}) {
  const { failure, attempt } = useAttempt();
  const accept = () => attempt(() => connection.sources.acceptSource({ name, digest }).then(onAccepted));
  return (
    <>
      <div class="actions">
        <button type="button" class="primary" onClick={() => void accept()}>
          Accept: models see these tools
        </button>
      </div>
      <ProblemText text={failure} />
    </>
  );
}
