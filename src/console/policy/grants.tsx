import { useSignal } from "@preact/signals";
import { type Grant, GrantScope } from "../../../gen/web/opencode/tool/v1/permission_pb.ts";
import type { Connection } from "../connection.ts";
import { CopyCommand } from "../copy-command.tsx";
import { PermissionMark } from "../inbox/permission-mark.tsx";
import { problemOf, useLoaded } from "../load.ts";
import { Empty, type PageProps } from "../page.tsx";
import { visibleText } from "../visible-text.ts";
import { momentOf } from "../words.ts";

const pageSize = 100;

/** What people approved with "always", and a way to take it back. */
export function Grants({ connection }: PageProps) {
  const withDead = useSignal(false);
  const count = useSignal(pageSize);
  const mayRead = connection.may("approver", "watcher", "admin");
  const grants = useLoaded(
    async (signal) => (mayRead ? await newest(connection, withDead.value, count.value, signal) : undefined),
    [connection, withDead.value, count.value],
  );
  if (!mayRead) {
    return (
      <Empty title="Grants are for who looks after them">
        Sign in with a token of the role approver, watcher or admin.
      </Empty>
    );
  }
  return (
    <section aria-label="Grants" aria-busy={grants.isLoading}>
      <p class="hint">
        What people approved with “always”. A grant answers only where the rules ask; it never beats a rule that denies.
      </p>
      <div class="actions">
        <label class="check">
          <input
            type="checkbox"
            checked={withDead.value}
            onChange={({ currentTarget }) => (withDead.value = currentTarget.checked)}
          />
          Also those that were revoked or have expired
        </label>
        <button type="button" class="quiet" onClick={grants.reload}>
          Look again
        </button>
      </div>
      {grants.problem !== "" && (
        <p class="problem" role="alert">
          {grants.problem}
        </p>
      )}
      {grants.value?.grants.length === 0 && (
        <Empty title="Nothing is granted">When somebody approves an ask with “always”, it appears here.</Empty>
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

async function newest(
  { permissions }: Connection,
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

function GrantCard({ grant, connection, onRevoked }: { grant: Grant; connection: Connection; onRevoked: () => void }) {
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
        <dd>{lastUsed > 0 ? momentOf(lastUsed) : "not yet"}</dd>
        <dt>Ends</dt>
        <dd>{life.words}</dd>
      </dl>
      {!life.isOver && connection.may("approver", "admin") && (
        <Revoke grantId={id} connection={connection} onRevoked={onRevoked} />
      )}
    </li>
  );
}

/** Revokes after a second click: what was taken back by mistake has to be asked and approved again. */
function Revoke({
  grantId,
  connection,
  onRevoked,
}: {
  grantId: string;
  connection: Connection;
  onRevoked: () => void;
}) {
  const isSure = useSignal(false);
  const problem = useSignal("");
  const revoke = async () => {
    try {
      await connection.permissions.revokeGrant({ grantId });
      onRevoked();
    } catch (error) {
      problem.value = problemOf(error);
    }
  };
  return (
    <>
      <div class="actions">
        {isSure.value ? (
          <>
            <button type="button" class="danger" ref={(button) => button?.focus()} onClick={() => void revoke()}>
              Yes, revoke it
            </button>
            <button type="button" class="quiet" onClick={() => (isSure.value = false)}>
              Keep it
            </button>
          </>
        ) : (
          <button type="button" class="danger" onClick={() => (isSure.value = true)}>
            Revoke
          </button>
        )}
        <CopyCommand words={["grants", "revoke", grantId]} />
      </div>
      {isSure.value && <p class="hint">No call starts on the strength of it afterwards. Those that run go on.</p>}
      {problem.value !== "" && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
    </>
  );
}

function matchWords({ match }: Grant) {
  const covered = match?.match;
  if (covered === undefined || covered.case === undefined) return "nothing that this page knows";
  const { before, text } =
    covered.case === "prefix"
      ? { before: "commands that begin with", text: covered.value.words.join(" ") }
      : { before: covered.case === "exact" ? "exactly" : "all that matches", text: covered.value };
  return (
    <>
      {before} <code>{visibleText(text)}</code>
    </>
  );
}

function scopeWords({ scope, agent }: Grant): string {
  if (scope === GrantScope.SESSION) return "the session it was asked in, and its children";
  if (scope === GrantScope.AGENT) return `the agent ${visibleText(agent)}, in every session of the workspace`;
  return "every session of the workspace";
}

function lifeOf({ revoked, expires }: Grant, now: number): { isOver: boolean; words: string } {
  if (revoked > 0) return { isOver: true, words: `revoked ${momentOf(revoked)}` };
  if (expires === 0) return { isOver: false, words: "when it is revoked, or with its session" };
  if (expires <= now) return { isOver: true, words: `expired ${momentOf(expires)}` };
  return { isOver: false, words: momentOf(expires) };
}
