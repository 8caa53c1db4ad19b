/**
 * Checks if a sed script only edits text: no `e`, `w`, `W`, `r`, `R` command, and no `e` or `w` flag. Knows less of the
 * language than sed does, and returns false where it is uncertain.
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

/** Returns the text after the addresses of a command: `5`, `$`, `/x/`, `2,/x/`, `0~3`, with or without `!`. */
function afterAddresses(text: string): string | undefined {
  let rest = text;
  for (let i = 0; i < 2; i++) {
    const length = rest.startsWith("/")
      ? addressLength(rest)
      : (/^(?:\d+(?:~\d+)?|\$|[+~]\d+)/.exec(rest)?.[0].length ?? 0);
    if (length === undefined) return undefined;
    rest = rest.slice(length).replace(/^[ \t]+/, "");
    if (length === 0 || !rest.startsWith(",")) break;
    rest = rest.slice(1).replace(/^[ \t]+/, "");
  }
  return rest.replace(/^[ \t]*!?[ \t]*/, "");
}

function addressLength(text: string): number | undefined {
  const end = endOfExpression(text, "/", 1);
  return end === -1 ? undefined : end + 1 + (/^[IM]*/.exec(text.slice(end + 1))?.[0].length ?? 0);
}

/** Returns the text after one command; undefined if the command is not known to be harmless. */
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
  const expression = hasFlags ? endOfExpression(text, mark, 0) : endOfText(text, mark, 0);
  const end = endOfText(text, mark, expression + 1);
  if (expression === -1 || end === -1) return undefined;
  const flags = hasFlags ? (/^[gpIiMm0-9]*/.exec(text.slice(end + 1))?.[0] ?? "") : "";
  const rest = text.slice(end + 1 + flags.length).replace(/^[ \t]+/, "");
  return rest === "" || /^[;}\n#]/.test(rest) ? rest : undefined;
}

/** Returns the index of the next mark without a backslash before it, or -1. */
function endOfText(text: string, mark: string, from: number): number {
  for (let at = from; at < text.length; at++) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === mark) return at;
  }
  return -1;
}

/**
 * Returns the same in a regular expression. In new versions of sed a mark in a set `[…]` does not end the expression; old
 * ones take the set as open, and refuse the script. Sets that versions may close at different places return -1.
 */
function endOfExpression(text: string, mark: string, from: number): number {
  for (let at = from; at < text.length; at++) {
    const character = text[at];
    if (character === mark) return at;
    if (character === "\n") return -1;
    if (character === "\\") at += 1;
    if (character !== "[") continue;
    set.lastIndex = at;
    const found = set.exec(text)?.[0];
    if (found === undefined || found.includes(`\\${mark}`)) return -1;
    at += found.length - 1;
  }
  return -1;
}

const set = /\[\^?(?:\[:[a-z]+:\]|[^\]\\[\n]|\\[^\]\n])+\]/y;

/** Checks if an awk program neither runs programs nor opens other files; returns false where it is uncertain. */
export function isTameAwk(program: string): boolean {
  if (awkReaches.test(program) || program.replaceAll("||", "").includes("|")) return false;
  return !program.includes(">") || !/\b(\d\w*)?print/.test(program);
}

/** Names by which awk reaches programs and files. A number may stand before one without a space. */
const awkReaches =
  /\b(\d\w*)?(system|getline|close|fflush|ARGV|ARGC|ENVIRON|PROCINFO|SYMTAB|FUNCTAB|extension|load|include)\b|\\\n|@/;
