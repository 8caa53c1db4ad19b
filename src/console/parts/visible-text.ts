/**
 * Makes untrusted text safe to show on one line: characters that are invisible or change the text around them are written as
 * `\u{…}`.
 */
export function visibleText(text: string): string {
  return text.replaceAll(/\s+/g, " ").replaceAll(hidden, written);
}

/** Makes untrusted text of several lines safe to show; line ends and tabs stay. */
export function visibleLines(text: string): string {
  return text.replaceAll(/\r\n/g, "\n").replaceAll(hidden, written);
}

const hidden = /(?![\t\n])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

function written(character: string): string {
  return `\\u{${character.codePointAt(0)?.toString(16)}}`;
}
