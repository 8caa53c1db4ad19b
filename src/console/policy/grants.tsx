import { useSignal } from "@preact/signals";
import type { Grant } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { useLoaded } from "../shell/load.ts";
import { Empty, type PageProps } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { GrantCard } from "./grant-card.tsx";

const pageSize = 100;

/** The grants that approvers saved with "always", with a button to revoke each. */
export function GrantsPage({ connection, feed }: PageProps) {
  const withDead = useSignal(false);
  const count = useSignal(pageSize);
  const mayRead = connection.may("approver", "watcher", "admin");
  const grants = useLoaded(
    async (signal) => (mayRead ? await newest(connection, withDead.value, count.value, signal) : undefined),
    [connection, withDead.value, count.value, newGrantIds(feed)],
  );
  if (!mayRead) {
    return (
      <Empty title="This token cannot list grants">
        Sign in with a token that has the role approver, watcher or admin.
      </Empty>
    );
  }
  return (
    <section aria-label="Grants" aria-busy={grants.isLoading}>
      <p class="hint">
        Saved approvals. A grant applies only where the rules ask; it never overrides a rule that denies.
      </p>
      <div class="actions">
        <label class="check">
          <input
            type="checkbox"
            checked={withDead.value}
            onChange={({ currentTarget }) => (withDead.value = currentTarget.checked)}
          />
          Show revoked and expired grants
        </label>
        <button type="button" class="quiet" onClick={grants.reload}>
          Refresh
        </button>
      </div>
      {grants.problem !== "" && (
        <p class="problem" role="alert">
          {grants.problem}
        </p>
      )}
      {grants.value?.grants.length === 0 && (
        <Empty title="No grants">Approve a request with “Always…” to create one.</Empty>
      )}
      <ul class="cards">
        {grants.value?.grants.map((grant) => (
          <GrantCard key={grant.id} grant={grant} connection={connection} onRevoked={grants.reload} />
        ))}
      </ul>
      {grants.value?.isMore && (
        <button type="button" onClick={() => (count.value += pageSize)}>
          Show more
        </button>
      )}
    </section>
  );
}

/** The ids of grants that were created while this page is open: a new one reloads the list. */
function newGrantIds({ asks }: AskFeed): string {
  return asks.value
    .flatMap(({ settled }) => (settled === undefined || settled === "unseen" ? [] : settled.grantId))
    .join();
}

async function newest(
  { permissions }: ConsoleConnection,
  includeDead: boolean,
  count: number,
  signal: AbortSignal,
): Promise<{ grants: readonly Grant[]; isMore: boolean }> {
  const grants: Grant[] = [];
  for (let pageToken = ""; ; ) {
    const page = await permissions.listGrants({ includeDead, pageSize, pageToken }, { signal });
    grants.push(...page.grants);
    pageToken = page.nextPageToken;
    if (pageToken === "" || grants.length >= count) return { grants, isMore: pageToken !== "" };
  }
}
