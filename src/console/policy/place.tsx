import type { Signal } from "@preact/signals";
import { visibleText } from "../parts/visible-text.ts";
import { useLoaded } from "../shell/load.ts";
import { Empty } from "../shell/page.tsx";
import type { ConsoleConnection } from "../stream/connection.ts";

/** Explains that the rights of a token are not enough for a section, and with which ones to sign in. */
export function NoRole({ what, children }: { what: string; children?: string }) {
  return (
    <Empty title={`This token cannot ${what}`}>
      Sign in with a token that has the role approver, watcher or admin. {children}
    </Empty>
  );
}

/** The scope of rules: a workspace or a session. */
export interface PolicyPlace {
  readonly case: "workspace" | "sessionId";
  readonly value: string;
}

/** Selects an agent; the first option is the session's agent, or `build` without a session, unless `first` names another meaning. */
export function AgentPicker({
  connection,
  agent,
  first = "build, or the agent of the session",
}: {
  connection: ConsoleConnection;
  agent: Signal<string>;
  first?: string;
}) {
  return (
    <label class="labelled">
      <span>Agent</span>
      <select value={agent.value} onChange={({ currentTarget }) => (agent.value = currentTarget.value)}>
        <option value="">{first}</option>
        {connection.server.agents.map((name) => (
          <option key={name} value={name}>
            {visibleText(name)}
          </option>
        ))}
      </select>
    </label>
  );
}

/** Selects one of the given workspaces or one of the newest sessions. */
export function PlacePicker({
  connection,
  workspaces,
  place,
}: {
  connection: ConsoleConnection;
  workspaces: readonly string[];
  place: Signal<PolicyPlace>;
}) {
  const sessions = useLoaded(
    async (signal) => (await connection.sessions.listSessions({ pageSize: 100 }, { signal })).sessions,
    [connection],
  );
  const places: readonly PolicyPlace[] = [
    ...workspaces.map((value): PolicyPlace => ({ case: "workspace", value })),
    ...(sessions.value ?? []).map(({ id }): PolicyPlace => ({ case: "sessionId", value: id })),
  ];
  return (
    <label class="labelled">
      <span>Workspace or session</span>
      <select
        value={keyOf(place.value)}
        onChange={({ currentTarget }) =>
          (place.value = places.find((one) => keyOf(one) === currentTarget.value) ?? place.value)
        }
      >
        <optgroup label="Workspaces">
          {workspaces.map((value) => (
            <option key={value} value={keyOf({ case: "workspace", value })}>
              {visibleText(value)}
            </option>
          ))}
        </optgroup>
        {sessions.value !== undefined && sessions.value.length > 0 && (
          <optgroup label="Sessions, newest first">
            {sessions.value.map(({ id, title, agent }) => (
              <option key={id} value={keyOf({ case: "sessionId", value: id })}>
                {visibleText(title || id)} ({visibleText(agent)})
              </option>
            ))}
          </optgroup>
        )}
      </select>
    </label>
  );
}

function keyOf({ case: kind, value }: PolicyPlace): string {
  return `${kind} ${value}`;
}
