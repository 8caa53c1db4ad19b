import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { SuggestedRule } from "../../../gen/opencode/tool/v1/permission_service_pb.ts";
import { CopyButton } from "../parts/copy-command.tsx";
import { Pre } from "../parts/long-text.tsx";
import { visibleLines } from "../parts/visible-text.ts";
import type { ConsoleConnection } from "../stream/connection.ts";

/** The rule that would have answered a request which people approved again and again; nothing for any other. */
export function SuggestedRuleNote({
  permissionId,
  connection,
}: {
  permissionId: string;
  connection: ConsoleConnection;
}) {
  const found = useSignal<SuggestedRule | undefined>(undefined);
  useEffect(() => {
    const left = new AbortController();
    found.value = undefined;
    connection.permissions.suggestRules({ permissionId }, { signal: left.signal }).then(
      ({ rules }) => {
        found.value = rules[0];
      },
      // Without it the card has all that an answer needs.
      () => undefined,
    );
    return () => left.abort();
  }, [permissionId]);
  if (found.value === undefined) return null;
  const { approvals, days, toml } = found.value;
  return (
    <details class="block">
      <summary>
        Approved {approvals} times on {days} days, never rejected: a rule could answer it
      </summary>
      <Pre text={visibleLines(toml)} look="long-text" />
      <p class="hint">
        Nothing is applied. Put it into <code>toolgate.toml</code>, or try it first under{" "}
        <a href="#/policy/try">Policy → Try rules</a>. <CopyButton text={toml} what="the rule" />
      </p>
    </details>
  );
}
