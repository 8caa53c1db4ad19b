import { useSignal } from "@preact/signals";
import type { FunctionComponent } from "preact";
import { PermissionLayer, type PermissionRule, type RuleList } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import { actionWord, layerWords } from "../../view/decisions.ts";
import { momentOf } from "../../view/quantities.ts";
import { boundTo } from "../parts/bound.ts";
import { visibleText } from "../parts/visible-text.ts";
import { useLoaded } from "../shell/load.ts";
import { Empty, type PageProps, ProblemText } from "../shell/page.tsx";
import { pathOf } from "../shell/route.ts";
import { DecisionLog } from "./decision-log.tsx";
import { Explain } from "./explain.tsx";
import { GrantsPage } from "./grants.tsx";
import { AgentPicker, NoRole, PlacePicker, type PolicyPlace } from "./place.tsx";
import { TryRules } from "./simulation.tsx";

/** All rules that apply to an agent in a workspace or session, list by list. */
function Rules({ connection }: PageProps) {
  const { server, permissions } = connection;
  const agent = useSignal("");
  const place = useSignal<PolicyPlace>({ case: "workspace", value: server.workspaces[0] ?? "default" });
  const filter = useSignal("");
  const mayRead = connection.may("approver", "watcher", "admin");
  const rules = useLoaded(
    async (signal) =>
      mayRead ? await permissions.listRules({ place: place.value, agent: agent.value }, { signal }) : undefined,
    [connection, place.value, agent.value],
  );
  if (!mayRead) return <NoRole what="list rules">Explain shows what the rules mean for one call.</NoRole>;
  const lists = rules.value?.lists ?? [];
  const matches = filterOf(filter.value);
  return (
    <section aria-label="Rules" aria-busy={rules.isLoading}>
      <div class="pickers">
        <AgentPicker connection={connection} agent={agent} />
        <PlacePicker connection={connection} workspaces={server.workspaces} place={place} />
        <label class="labelled">
          <span>Show only</span>
          <input type="search" placeholder="bash, or a part of a pattern" {...boundTo(filter)} />
        </label>
      </div>
      <ProblemText text={rules.problem} />
      {lists.length > 0 && (
        <>
          <p class="hint">
            <a href="#/policy/try">Try other rules</a> on what was decided before you change these.
          </p>
          <h2>One list, read from top to bottom</h2>
          <p class="hint">The last matching rule decides. Without a match, a call needs approval.</p>
          {lists.filter(isWide).map((list) => (
            <ListOfRules key={list.layer} list={list} matches={matches} />
          ))}
          <h2>Lists that can only restrict</h2>
          <p class="hint">Each list is evaluated separately; the strictest result wins.</p>
          {lists.every(isWide) && <p class="soft">None here.</p>}
          {lists
            .filter((list) => !isWide(list))
            .map((list) => (
              <ListOfRules key={`${list.layer} ${list.source}`} list={list} matches={matches} />
            ))}
        </>
      )}
    </section>
  );
}

function ListOfRules({ list, matches }: { list: RuleList; matches: (rule: PermissionRule) => boolean }) {
  const { layer, source, rules, problem } = list;
  const shown = rules.map((rule, index) => ({ rule, index })).filter(({ rule }) => matches(rule));
  const title = source === "" ? layerWords(layer) : `${layerWords(layer)} (${visibleText(source)})`;
  return (
    <section class="rule-list">
      <h3>{title}</h3>
      {layer === PermissionLayer.INHERITED && <p class="hint">Only its rules that deny apply here.</p>}
      {problem !== "" && <p class="warning">{visibleText(problem)}: everything needs approval until this is fixed.</p>}
      {shown.length === 0 ? (
        <p class="soft">{rules.length === 0 ? "No rules." : "No matching rules."}</p>
      ) : (
        <table class="rules">
          <caption class="unseen">{title}</caption>
          <thead>
            <tr>
              <th scope="col">#</th>
              <th scope="col">Permission</th>
              <th scope="col">Pattern</th>
              <th scope="col">Action</th>
            </tr>
          </thead>
          <tbody>
            {shown.map(({ rule, index }) => (
              <tr key={index}>
                <td>{index}</td>
                <td class="mono">{visibleText(rule.permission)}</td>
                <td class="mono">{visibleText(rule.pattern)}</td>
                <td>
                  <span class="action" data-action={actionWord(rule.action)}>
                    {actionWord(rule.action)}
                  </span>
                  {rule.when !== "" && <span class="mono"> {visibleText(rule.when)}</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function isWide({ layer }: RuleList): boolean {
  return wideLayers.has(layer);
}

const wideLayers: ReadonlySet<PermissionLayer> = new Set([
  PermissionLayer.DEFAULTS,
  PermissionLayer.PRESET,
  PermissionLayer.CONFIG,
  PermissionLayer.AGENT,
]);

function filterOf(text: string): (rule: PermissionRule) => boolean {
  const wanted = text.trim().toLowerCase();
  return ({ permission, pattern, action }) =>
    `${permission} ${pattern} ${actionWord(action)}`.toLowerCase().includes(wanted);
}

/** The decisions about the calls of a session tree, and the state of their hash chain. */
function DecisionsPage({ connection, route }: PageProps) {
  const [, named = ""] = route.chosen.value;
  const roots = useLoaded(
    async (signal) => {
      const { sessions } = await connection.sessions.listSessions({ pageSize: 200 }, { signal });
      return sessions.filter(({ id, rootSessionId }) => id === rootSessionId);
    },
    [connection],
  );
  const sessionId = named || (roots.value?.[0]?.id ?? "");
  const isListed = roots.value?.some(({ id }) => id === sessionId);
  return (
    <section aria-label="Decisions">
      <p class="hint">
        Every decision about a call is a record in a hash chain, which is stored longer than its session.
      </p>
      <label class="labelled">
        <span>Session and its children</span>
        <select
          value={sessionId}
          aria-busy={roots.isLoading}
          onChange={({ currentTarget }) => route.go(pathOf("policy", "decisions", currentTarget.value))}
        >
          {named !== "" && !isListed && <option value={named}>{visibleText(named)}</option>}
          {roots.value?.map(({ id, title, created }) => (
            <option key={id} value={id}>
              {visibleText(title || id)}, {momentOf(created)}
            </option>
          ))}
        </select>
      </label>
      <ProblemText text={roots.problem} />
      {sessionId === "" && !roots.isLoading && <Empty title="No sessions yet">Decisions are made about calls.</Empty>}
      {sessionId !== "" && <DecisionLog key={sessionId} connection={connection} sessionId={sessionId} />}
    </section>
  );
}

const sections: Readonly<Record<string, { title: string; Section: FunctionComponent<PageProps> }>> = {
  rules: { title: "Rules", Section: Rules },
  try: { title: "Try rules", Section: TryRules },
  grants: { title: "Grants", Section: GrantsPage },
  explain: { title: "Explain", Section: Explain },
  decisions: { title: "Decisions", Section: DecisionsPage },
};

/** The Policy page: one section, and the tabs to the others. */
export function PolicyPage(props: PageProps) {
  const [chosen = ""] = props.route.chosen.value;
  const current = Object.hasOwn(sections, chosen) ? chosen : "rules";
  const Section = sections[current]?.Section ?? Rules;
  return (
    <div class="page policy">
      <h1>Policy</h1>
      <nav class="tabs" aria-label="Policy sections">
        {Object.entries(sections).map(([name, { title }]) => (
          <a key={name} href={`#/policy/${name}`} aria-current={name === current ? "page" : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <Section {...props} />
    </div>
  );
}
