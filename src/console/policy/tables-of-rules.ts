const tables: ReadonlySet<string> = new Set(["permission", "agent", "preset"]);

/**
 * Blanks all lines of a configuration but its tables of rules: tokens and passwords stay on the page, and a line that the
 * service names is the line of the file.
 */
export function tablesOfRules(text: string): string {
  let [isRule, hasTable, quotes] = [false, false, ""];
  return text
    .split("\n")
    .map((line) => {
      if (quotes === "") {
        const table = /^\s*\[{1,2}\s*(["']?)([\w-]+)\1\s*[.\]](?!\s*,)/.exec(line)?.[2];
        const key = hasTable ? undefined : /^\s*(["']?)([\w-]+)\1\s*[.=]/.exec(line)?.[2];
        const name = table ?? key;
        hasTable ||= table !== undefined;
        if (name !== undefined) isRule = tables.has(name);
      }
      for (const [mark] of line.matchAll(/"""|'''/g)) quotes = quotes === "" ? mark : quotes === mark ? "" : quotes;
      return isRule ? line : "";
    })
    .join("\n");
}
