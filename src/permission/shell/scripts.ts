/**
 * Whether a sed script only edits text: no `e`, `w`, `W`, `r`, `R` command, and no `e` or `w` flag. It knows less of the
 * language than sed does, and says no where it is not sure.
 */
export function isTameSed(script: string): boolean {
  let rest = script;
  for (;;) {
    rest = rest.replace(/^[\s;}]+/, "");
    if (rest === "") return true;
    const command = afterAddresses(rest);
    const behind = command === undefined ? undefined : afterCommand(command);
    if (behind === undefined) return false;
    rest = behind;
  }
}

function afterAddresses(text: string): string | undefined {
  const address = /^(?:\d+(?:~\d+)?|\$|\/(?:[^/\\\n]|\\.)*\/[IM]*|[+~]\d+)/;
  let rest = text;
  for (let i = 0; i < 2; i++) {
    const found = address.exec(rest)?.[0];
    if (found === undefined) break;
    if (found.startsWith("/") && !hasClosedSets(found)) return undefined;
    rest = rest.slice(found.length).replace(/^[ \t]+/, "");
    if (!rest.startsWith(",")) break;
    rest = rest.slice(1).replace(/^[ \t]+/, "");
  }
  return rest.replace(/^[ \t]*!?[ \t]*/, "");
}

/** What is left behind one command, or nothing if it is not known to be harmless. */
function afterCommand(text: string): string | undefined {
  const plain = /^(?:[=dDgGhHnNpPxz{]|[qQ]\d*)[ \t]*(?=[;}\n]|$)|^\{/.exec(text)?.[0];
  if (plain !== undefined) return text.slice(plain.length);
  const named =
    /^(?:[:btT][ \t]*\w*[ \t]*(?=[;}\n]|$)|#[^\n]*|[aic][ \t]*[^\\\n]*(?=\n|$)|l[ \t]*\d*(?=[;}\n]|$))/.exec(text)?.[0];
  if (named !== undefined) return text.slice(named.length);
  const [, kind, mark = ""] = /^([sy])([^\\\n\w\s])/.exec(text) ?? [];
  return kind === undefined ? undefined : afterSubstitution(text.slice(2), mark, kind === "s");
}

function afterSubstitution(text: string, mark: string, hasFlags: boolean): string | undefined {
  const expression = endOfPart(text, mark, 0);
  const end = endOfPart(text, mark, expression + 1);
  if (expression === -1 || end === -1 || !hasClosedSets(text.slice(0, expression))) return undefined;
  const flags = hasFlags ? (/^[gpIiMm0-9]*/.exec(text.slice(end + 1))?.[0] ?? "") : "";
  const rest = text.slice(end + 1 + flags.length).replace(/^[ \t]+/, "");
  return rest === "" || /^[;}\n#]/.test(rest) ? rest : undefined;
}

/** The place of the next mark that no backslash stands before, or -1. */
function endOfPart(text: string, mark: string, from: number): number {
  for (let at = from; at < text.length; at++) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === mark) return at;
  }
  return -1;
}

/** In a set `[…]` a delimiter ends nothing: a set that seems open was cut in two. */
function hasClosedSets(expression: string): boolean {
  return !expression
    .replace(/\\[\s\S]/g, "")
    .replace(/\[\^?\]?[^\]]*\]/g, "")
    .includes("[");
}

/** Whether an awk program neither runs programs nor opens files of its own; it says no where it is not sure. */
export function isTameAwk(program: string): boolean {
  if (/\b(system|getline|close|fflush|ARGV|ARGC|ENVIRON|PROCINFO|extension|load|include)\b|[@\\]\n|@/.test(program))
    return false;
  if (program.replaceAll("||", "").includes("|")) return false;
  return !program.includes(">") || !/\bprint/.test(program);
}
