import type { JsonObject, JsonValue } from "@bufbuild/protobuf";

/** Text as a person may be shown it: what is invisible, or changes what stands around it, is written out as `\u{…}`. */
export function visible(text: string): string {
  return text.replaceAll(hidden, (character) => `\\u{${character.codePointAt(0)?.toString(16)}}`);
}

/** Whether a person sees all of a text as it is. */
export function isVisible(text: string): boolean {
  return text.search(hidden) === -1;
}

/** How one object differs from another, for people and models: `command: was "make", now "make test"`. */
export function difference(before: JsonObject, after: JsonObject): string {
  const changes = [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) => {
    const [was, now] = [written(before[name]), written(after[name])];
    return was === now ? [] : [`${visible(name)}: was ${was}, now ${now}`];
  });
  return changes.join("; ");
}

const longestValue = 400;

function written(value: JsonValue | undefined): string {
  if (value === undefined) return "absent";
  const text = visible(JSON.stringify(value));
  if (text.length <= longestValue) return text;
  return `${text.slice(0, longestValue)}… (${text.length - longestValue} more characters)`;
}

/** Control (but tab and newline), format and bidi characters, lone surrogates, separators, what is drawn as nothing, odd spaces. */
const hidden = /(?![\t\n])[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}/gu;
