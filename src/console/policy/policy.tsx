import type { FunctionComponent } from "preact";
import type { PageProps } from "../shell/page.tsx";
import { DecisionsPage } from "./decisions.tsx";
import { Explain } from "./explain.tsx";
import { GrantsPage } from "./grants.tsx";
import { Rules } from "./rules.tsx";

const sections: Readonly<Record<string, { title: string; Section: FunctionComponent<PageProps> }>> = {
  rules: { title: "Rules", Section: Rules },
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
