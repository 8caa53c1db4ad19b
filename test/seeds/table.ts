/** `node test/seeds/table.ts`: writes table.md, the state of each requirement of the order, by the tests that name its row. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { deviations, elsewhere, requirements } from "./rows.ts";

const folder = import.meta.dirname;
const rowsNamed = /\brows? (\d+(?:(?:, | to | and )\d+)*)/g;

/** Rows that a title names, such as `rows 1 to 3, 5`. */
function rowsOf(title: string): number[] {
  return [...title.matchAll(rowsNamed)].flatMap(([, list = ""]) =>
    list.split(/, | and /).flatMap((part) => {
      const [first = 0, last = first] = part.split(" to ").map(Number);
      return Array.from({ length: last - first + 1 }, (_, i) => first + i);
    }),
  );
}

/** Tests of this folder, by the rows that their titles name. */
function testsByRow(): Map<number, string> {
  const found = new Map<number, string>();
  for (const file of readdirSync(folder).filter((name) => name.endsWith(".test.ts"))) {
    for (const [, , title = ""] of readFileSync(join(folder, file), "utf8").matchAll(/([`"])(rows? (?:(?!\1).)+)\1/g))
      for (const row of rowsOf(title)) if (!found.has(row)) found.set(row, `\`test/seeds/${file}\`: ${title}`);
  }
  return found;
}

/** Returns the table. What deviates says so, also where a test shows a part of it. */
export function tableOfRows(): string {
  const named = testsByRow();
  const lines = Object.entries(requirements).map(([key, [document, requirement]]) => {
    const row = Number(key);
    const [state, evidence] = stateOf(row, named.get(row));
    return `| ${row} | ${document} | ${requirement.replaceAll("|", "\\|")} | ${state} | ${evidence.replaceAll("|", "\\|")} |`;
  });
  return ["| row | document | requirement | state | shown by |", "| ---: | --- | --- | --- | --- |", ...lines, ""].join(
    "\n",
  );
}

function stateOf(row: number, named: string | undefined): [state: string, evidence: string] {
  const deviation = deviations[row];
  if (deviation !== undefined)
    return ["deviates, serves the user", `${deviation[0]}; said at ${deviation[1]}: "${deviation[2]}"`];
  const other = elsewhere[row];
  const evidence = other === undefined ? named : `\`${other[0]}\`: ${other[1]}`;
  return evidence === undefined ? ["not shown", ""] : ["Y", evidence];
}

if (import.meta.main) writeFileSync(join(folder, "table.md"), tableOfRows());
