import { pagesOf } from "../../core/pages-of.ts";
import { useLoaded } from "../shell/load.ts";
import { Empty, type PageProps } from "../shell/page.tsx";
import { SourceCard } from "./source-card.tsx";

/** The MCP servers and tool processes, with what is offered and not accepted. */
export function SourcesPage({ connection }: PageProps) {
  const sources = useLoaded(
    (signal) => Array.fromAsync(pagesOf((page) => connection.sources.listSources(page, { signal }))),
    [connection],
  );
  const list = sources.value?.flatMap((page) => page.sources);
  return (
    <section class="page" aria-busy={sources.isLoading}>
      <h1>Sources</h1>
      <div class="actions">
        <button type="button" class="quiet" onClick={sources.reload}>
          Refresh
        </button>
      </div>
      {sources.problem !== "" && (
        <p class="problem" role="alert">
          {sources.problem}
        </p>
      )}
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
    </section>
  );
}
