/**
 * Text of a stranger, on one line, as a person may be shown it: what is invisible, or would change what stands around it, is
 * written out as `\u{…}`.
 */
export function visibleText(text: string): string {
  return text.replaceAll(/\s+/g, " ").replaceAll(hidden, written);
}

/** The same for text of several lines; line ends and tabs stay. */
export function visibleLines(text: string): string {
  return text.replaceAll(/\r\n/g, "\n").replaceAll(hidden, written);
}

const hidden = /(?![\t\n])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

function written(character: string): string {
  return `\\u{${character.codePointAt(0)?.toString(16)}}`;
}
