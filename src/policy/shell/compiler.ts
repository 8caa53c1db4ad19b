import { type Effects, usesIn } from "./effects.ts";
import type { Word } from "./line.ts";

const flags = new Set(
  "-c -S -E -v -w -g -s -pg -static -shared -pthread -pie -no-pie -pedantic -pedantic-errors -ansi -pipe -rdynamic -nostdlib -nostdinc -nostartfiles -ffreestanding -fPIC -fpic -fPIE -fpie -fno-exceptions -fno-rtti -fno-common -fno-builtin -fno-inline -fno-strict-aliasing -fomit-frame-pointer -fno-omit-frame-pointer -fstack-protector -fstack-protector-strong -fstack-protector-all -fopenmp -flto -fcommon -funroll-loops -ffast-math -fwrapv -fsigned-char -funsigned-char -fsyntax-only -fdiagnostics-color -fno-diagnostics-color --version --help -dumpversion -dumpmachine -M -MM".split(
    " ",
  ),
);
/** Warnings except `-Wl,` `-Wa,` and `-Wp,`, which pass options on; levels, standards, machines, definitions, libraries by name. */
const families =
  /^(-W(?![lap],)[a-z][\w+=-]*|-O[0-3sgz]?|-Ofast|-g[0-3]|-ggdb[0-3]?|-std=[\w+:]+|-m(32|64|arch=[\w.-]+|tune=[\w.-]+|cpu=[\w.-]+|avx\d*|sse[\d.]*)|-D\w+(=[\w".+-]*)?|-U\w+|-l[\w+.-]+|-fsanitize=[\w,-]+|-fvisibility=\w+|-fdiagnostics-color=\w+)$/;

/** Adds the effects of a C compiler: it reads its operands and writes what `-o` names; an option that is not listed may run a program. */
export function runCompiler(words: readonly Word[], effects: Effects): void {
  let output: Word | undefined;
  const sources: Word[] = [];
  for (let at = 1; at < words.length; at++) {
    const word = words[at];
    if (!word) return;
    const { value } = word;
    const [, letter = "", attached = ""] = /^-([oILDUlx])(.*)$/.exec(value) ?? [];
    if (flags.has(value) || families.test(value)) continue;
    if (letter !== "") {
      const given = attached === "" ? words[++at] : { ...word, value: attached };
      if (letter === "o") output = given;
      if (given && /[IL]/.test(letter)) effects.uses.push(...usesIn(given, "look"));
    } else if (value.startsWith("-") && value !== "-") {
      effects.dangers.push({ at, why: `option ${value} is not known to be harmless` });
    } else if (value.startsWith("@")) {
      effects.dangers.push({ at, why: `${value} is a file with more options` });
    } else {
      sources.push(word);
    }
  }
  for (const word of sources) effects.uses.push(...usesIn(word, "read"));
  const stops = words.find(({ value }) => /^-[cS]$/.test(value))?.value;
  const printed = words.some(({ value }) => /^(-E|-M|-MM|-fsyntax-only|-v|--version|--help|-dump.*)$/.test(value));
  if (output) effects.uses.push({ path: output.value, glob: output.glob, as: "write" });
  else if (!printed)
    effects.uses.push(...writtenFor(sources, stops).map((path) => ({ path, glob: false, as: "write" as const })));
}

/** Returns the names that a compiler chooses by itself. */
function writtenFor(sources: readonly Word[], stops: string | undefined): string[] {
  if (stops === undefined) return ["a.out"];
  const ending = stops === "-c" ? ".o" : ".s";
  return sources.map(({ value }) => value.replace(/^.*\//, "").replace(/\.[^.]*$/, "") + ending);
}
