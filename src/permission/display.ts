/** Text as a person may be shown it: what is invisible, or changes what stands around it, is written out as `\u{…}`. */
export function visible(text: string): string {
  return text.replaceAll(hidden, (character) => `\\u{${character.codePointAt(0)?.toString(16)}}`);
}

/** Whether a person sees all of a text as it is. */
export function isVisible(text: string): boolean {
  return text.search(hidden) === -1;
}

/** Control (but tab and newline), format and bidi characters, lone surrogates, separators, what is drawn as nothing, odd spaces. */
const hidden = /(?![\t\n])[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}/gu;
