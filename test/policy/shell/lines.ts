// biome-ignore-all lint/suspicious/noTemplateCurlyInString: the lines are for a shell
/** Generates numbers from 0 up to 1 from a seed (mulberry32). */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** Generates command lines: most are complete, many have a part inserted or removed, so that they test the limits of the grammar. */
export function lineMaker(next: () => number, programs: readonly string[]): () => string {
  const upTo = (count: number) => Math.floor(next() * count);
  const pick = <Item>(items: readonly [Item, ...Item[]]): Item => items[upTo(items.length)] ?? items[0];
  const some = (make: () => string, most: number) => Array.from({ length: upTo(most + 1) }, make).join("");

  const plain = () =>
    pick([
      "a",
      "b1",
      "-x",
      "--opt=v",
      "src/a.ts",
      ".env",
      "HEAD~1",
      "a#b",
      "@{1}",
      "{}",
      "é",
      "1",
      "2",
      "=",
      "!",
      "]",
      "%",
      "^a",
      "a:b,c",
      "+",
      "if",
      "done",
    ]);
  const inSingle = () =>
    `'${some(() => pick(["a", " ", '"', "$x", "`", "\\", "\n", ";", "|", "*", "#", "é", "  ", "\t", "!"]), 4)}'`;
  const printed = () => {
    const quote = pick(["'", "'", "'", '"', ""]);
    const text = some(() => pick(["a\n", "\n", "$(p)\n", "`'\n", '")\n', "EOF)\n", " EOF\n", "\\\n"]), 3);
    const end = pick(["\n)", "\n)", "\n)", "\n \n\t)", ")", "\np)", " )"]);
    return `$(cat${pick([" ", " ", "  ", " -n "])}<<${pick(["", "", " ", "-"])}${quote}EOF${quote}${pick(["", "", "", " ", " | p"])}\n${text}EOF${end}`;
  };
  const inDouble = () =>
    `"${some(() => pick([printed(), "a", " ", "'", "$?", "\\$", '\\"', "\\\\", "\\a", "\n", ";", "|", "*", "#", "$", "é", "\\`", "!", "~", "{a,b}"]), 4)}"`;
  const escaped = () => `\\${pick([" ", "a", "$", "'", '"', "\\", ";", "|", "&", "*", "#", "~", "{", "(", "=", "\n"])}`;
  const special = () =>
    pick([
      "*",
      "?",
      "[ab]",
      "[",
      "$?",
      "$",
      "~",
      "{a,b}",
      "{1..3}",
      "&",
      "(",
      ")",
      "`",
      "<",
      "$a",
      "${a}",
      "$(p)",
      printed(),
      "$'a'",
      "\\\n",
      "\r",
      "#",
      "=",
      "%1",
    ]);
  const piece = () => pick([plain, plain, plain, inSingle, inDouble, escaped, pick([special, plain, plain])])();
  const word = () => piece() + (next() < 0.3 ? piece() : "") + (next() < 0.1 ? piece() : "");
  const blank = () => pick([" ", " ", " ", " ", "  ", "\t", " \\\n", " \\\n  "]);
  const redirect = () =>
    pick([
      "2>&1",
      ">&2",
      "1>&2",
      "> out",
      ">out",
      "2> err",
      ">> out",
      "&> out",
      "2>/dev/null",
      "< file",
      "<file",
      ">| out",
      "<<< word",
      "<<<'a b'",
      ">!",
      "3> x",
      "> '",
      "2>&1x",
      "a2>out",
    ]);
  const command = () => {
    const assigned = some(
      () => `${pick(["A", "CI", "b_1"])}=${pick(["1", "", "'x y'", '"z"', "$a", "a=b"])} `,
      next() < 0.1 ? 2 : 0,
    );
    const words = some(() => blank() + (next() < 0.12 ? redirect() : word()), 5);
    const program = next() < 0.9 ? pick(["p", ...programs]) : word();
    return assigned + (next() < 0.05 ? quoted(program) : program) + words;
  };
  const quoted = (program: string) => pick([`'${program}'`, `"${program}"`, `\\${program}`, `${program}''`]);
  const document = () => {
    const quote = pick(["'", '"', "'", "'", "", "\\"]);
    const text = some(() => pick(["text\n", "$(p)\n", " EOF\n", "EOFX\n", "\\\n", "`p`\n", "\n", "'\n"]), 3);
    return ` <<${quote}EOF${quote === "\\" ? "" : quote}${next() < 0.2 ? " | p" : ""}\n${text}EOF\n`;
  };
  const join = () =>
    pick([
      " | ",
      "|",
      " && ",
      "&&",
      " || ",
      "; ",
      ";",
      "\n",
      " ; \n",
      " |\n ",
      " &&\n",
      "\n\n",
      " \\\n&& ",
      " & ",
      "|&",
      ";;",
      "&\\\n&",
      "|\\\n|",
    ]);
  const line = () => {
    const commands = command() + some(() => join() + command(), next() < 0.5 ? 2 : 0);
    const before = pick(["", "", "", "", " ", "\n", "# note\n", ";"]);
    const after = pick([
      "",
      "",
      "",
      "",
      "",
      " ",
      ";",
      "\n",
      " # note 'x",
      " #",
      ";# a",
      "#b",
      " &&",
      " |",
      " \\\n",
      "\\",
      document(),
      `${document()}${command()}`,
    ]);
    return before + commands + after;
  };
  const odd = () => pick([special, inSingle, inDouble, escaped, blank, join, redirect])();

  return () => {
    const whole = line();
    if (next() < 0.7) return whole;
    const at = upTo(whole.length + 1);
    return next() < 0.5
      ? whole.slice(0, at) + odd() + whole.slice(at)
      : whole.slice(0, at) + whole.slice(at + 1 + upTo(2));
  };
}
