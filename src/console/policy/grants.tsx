import { useSignal } from "@preact/signals";
import { type Grant, GrantScope } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { momentOf } from "../../view/quantities.ts";
import type { AskFeed } from "../inbox/ask-feed.ts";
import { PermissionMark } from "../inbox/permission-mark.tsx";
import { checkedBy } from "../parts/bound.ts";
import { CopyCommand } from "../parts/copy-command.tsx";
import { visibleText } from "../parts/visible-text.ts";
import { useAttempt, useLoaded } from "../shell/load.ts";
import { Empty, type PageProps, ProblemText } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";
import { NoRole } from "./place.tsx";

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
  if (!mayRead) return <NoRole what="list grants" />;
  return (
    <section aria-label="Grants" aria-busy={grants.isLoading}>
      <p class="hint">
        Saved approvals. A grant applies only where the rules ask; it never overrides a rule that denies.
      </p>
      <div class="actions">
        <label class="check">
          <input type="checkbox" {...checkedBy(withDead)} />
          Show revoked, expired and used up grants
        </label>
        <button type="button" class="quiet" onClick={grants.reload}>
          Refresh
        </button>
      </div>
      <ProblemText text={grants.problem} />
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

/** A grant: its match, scope, origin and end, with a button to revoke it for roles that may. */
function GrantCard({
  grant,
  connection,
  onRevoked,
}: {
  grant: Grant;
  connection: ConsoleConnection;
  onRevoked: () => void;
}) {
  const { id, permission, text, grantedBy, created, lastUsed, tool, workspace, sessionId } = grant;
  const life = lifeOf(grant, Date.now());
  return (
    <li class="card" data-ended={life.isOver}>
      <p class="card-head">
        <PermissionMark kind={permission} />
        <b>{visibleText(text)}</b>
      </p>
      <dl class="facts">
        <dt>Covers</dt>
        <dd>{matchWords(grant)}</dd>
        <dt>For</dt>
        <dd>{scopeWords(grant)}</dd>
        <dt>Bound to</dt>
        <dd>
          the tool <code>{visibleText(tool)}</code> in <code>{visibleText(workspace)}</code>
        </dd>
        <dt>Given</dt>
        <dd>
          by {visibleText(grantedBy)}, {momentOf(created)}, in <a href={`#/sessions/${sessionId}`}>{sessionId}</a>
        </dd>
        <dt>Last used</dt>
        <dd>{lastUsed > 0 ? momentOf(lastUsed) : "never"}</dd>
        <dt>Ends</dt>
        <dd>{life.words}</dd>
      </dl>
      {!life.isOver && connection.may("approver", "admin") && (
        <Revoke grantId={id} connection={connection} onRevoked={onRevoked} />
      )}
    </li>
  );
}

/** Revokes after a second click, because an accidental revocation costs another approval. */
function Revoke({
  grantId,
  connection,
  onRevoked,
}: {
  grantId: string;
  connection: ConsoleConnection;
  onRevoked: () => void;
}) {
  const isConfirming = useSignal(false);
  const { failure, attempt } = useAttempt();
  const revoke = () => attempt(() => connection.permissions.revokeGrant({ grantId }).then(onRevoked));
  return (
    <>
      <div class="actions">
        {isConfirming.value ? (
          <>
            <button type="button" class="danger" ref={(button) => button?.focus()} onClick={() => void revoke()}>
              Yes, revoke it
            </button>
            <button type="button" class="quiet" onClick={() => (isConfirming.value = false)}>
              Keep it
            </button>
          </>
        ) : (
          <button type="button" class="danger" onClick={() => (isConfirming.value = true)}>
            Revoke
          </button>
        )}
        <CopyCommand words={["grants", "revoke", grantId]} />
      </div>
      {isConfirming.value && <p class="hint">No new call can use it. Running calls continue.</p>}
      <ProblemText text={failure} />
    </>
  );
}

function matchWords({ match }: Grant) {
  const covered = match?.match;
  if (covered === undefined || covered.case === undefined) return "a kind of match that this page does not know";
  if (covered.case === "prefix") {
    const { words, options } = covered.value;
    return (
      <>
        commands that begin with <code>{visibleText(words.join(" "))}</code>, without{" "}
        {options.length === 0 ? "options" : "options but "}
        {options.length > 0 && <code>{visibleText(options.join(" "))}</code>} and further risks
      </>
    );
  }
  return (
    <>
      {covered.case === "exact" ? "exactly" : "everything that matches"} <code>{visibleText(covered.value)}</code>
    </>
  );
}

function scopeWords({ scope, agent }: Grant): string {
  if (scope === GrantScope.SESSION) return "the session it was asked in, and its children";
  if (scope === GrantScope.AGENT) return `the agent ${visibleText(agent)}, in every session of the workspace`;
  return "every session of the workspace";
}

function lifeOf({ revoked, suspended, expires, times, left }: Grant, now: number): { isOver: boolean; words: string } {
  if (revoked > 0) return { isOver: true, words: `revoked ${momentOf(revoked)}` };
  if (suspended > 0) {
    const command = "toolgate grants confirm";
    return { isOver: false, words: `suspended by a restore ${momentOf(suspended)}, until \`${command}\` confirms it` };
  }
  if (expires > 0 && expires <= now) return { isOver: true, words: `expired ${momentOf(expires)}` };
  if (times > 0 && left === 0) return { isOver: true, words: `used up: ${times} of ${times}` };
  const end = expires === 0 ? "when it is revoked, or when its session ends" : momentOf(expires);
  return { isOver: false, words: times === 0 ? end : `${left} of ${times} left; ${end}` };
}
