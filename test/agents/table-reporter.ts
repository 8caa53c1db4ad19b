import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Reporter, TestModule } from "vitest/node";
import { agentFacts } from "../../src/agents/hooks/agent-facts.ts";

const page = join(import.meta.dirname, "../../docs/agents/README.md");
const [begin, end] = ["<!-- measured: npm run test:agents -->\n", "<!-- end -->"];

/** Writes what the tests that passed measured into the table of docs/agents/README.md, whose other cells stay. */
export default class TableReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const tests = modules.flatMap(({ children }) => [...children.allTests("passed")]);
    const measured = tests.flatMap((test) => test.meta().measured ?? []);
    if (measured.length === 0) return;
    const text = readFileSync(page, "utf8");
    const [before = "", rest = ""] = text.split(begin);
    const lines = [...rest.slice(0, rest.indexOf(end)).matchAll(/^\|(.*)\|$/gm)].slice(2);
    const known = lines.map(([, line = ""]) => line.split("|").map((cell) => cell.trim()));
    const rows = new Map(known.map(([row = "", ...cells]) => [row, cells]));
    const kinds = Object.keys(agentFacts);
    for (const { kind, row, outcome } of measured) {
      const cells = rows.get(row) ?? kinds.map(() => "–");
      rows.set(row, cells.with(kinds.indexOf(kind), outcome === "runs" ? "**runs**" : outcome));
    }
    const heads = ["", ...kinds.map((kind) => `${agentFacts[kind]?.name} ${agentFacts[kind]?.version}`)];
    const table = [heads, heads.map(() => "---"), ...[...rows].map(([row, cells]) => [row, ...cells])];
    const written = table.map((cells) => `| ${cells.join(" | ")} |\n`).join("");
    writeFileSync(page, `${before}${begin}\n${written}\n${rest.slice(rest.indexOf(end))}`);
  }
}
