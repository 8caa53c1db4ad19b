/** A value of git's settings. Its name has case folded, and `*` as its subsection; the subsection keeps its case. */
export interface GitSetting {
  name: string;
  subsection: string;
  value: string;
}

/** Reads the names and values of a settings file, as git does, without judging what git would refuse. */
export function* settingsIn(text: string): Generator<GitSetting> {
  let [section, subsection] = ["", ""];
  // A backslash at its end continues a line.
  for (let line of text.replace(/\\\r?\n/g, " ").split(/\r?\n/)) {
    const [header, start = "", quoted] = /^\s*\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]/.exec(line) ?? [];
    if (header !== undefined) {
      const [first = "", ...old] = start.toLowerCase().split(".");
      section = quoted === undefined && old.length === 0 ? first : `${first}.*`;
      subsection = quoted?.replaceAll(/\\(.)/g, "$1") ?? old.join(".");
      line = line.slice(header.length);
    }
    const [, key, raw] = /^\s*([A-Za-z][\w-]*)\s*=\s*(.*)$/.exec(line) ?? [];
    if (key !== undefined && raw !== undefined)
      yield { name: `${section}.${key.toLowerCase()}`, subsection, value: unquoted(raw) };
  }
}

/** Removes the quotes, escapes and comment of a value. */
function unquoted(raw: string): string {
  let [value, isQuoted] = ["", false];
  for (let i = 0; i < raw.length; i++) {
    const char = raw[i] ?? "";
    if (char === "\\") value += { n: "\n", t: "\t" }[raw[++i] ?? ""] ?? raw[i] ?? "";
    else if (char === '"') isQuoted = !isQuoted;
    else if (!isQuoted && (char === "#" || char === ";")) break;
    else value += char;
  }
  return value.trim();
}
