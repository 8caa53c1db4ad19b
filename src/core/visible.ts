/** Control characters (except tab and newline), format and bidi characters, lone surrogates, separators, characters without a glyph, unusual spaces. */
export const hiddenCharacters =
  /(?![\t\n])[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u{2800}\u{1d159}]|(?! )\p{Zs}/gu;

/** Escapes text for display: characters that are invisible, or that change the text around them, become `\u{…}`. */
export function visible(text: string): string {
  return text.replaceAll(hiddenCharacters, escaped);
}

/** Escapes a name, a path or a heading, which is one line: a line feed or tab in it becomes `\u{…}` too. */
export function visibleLine(text: string): string {
  return visible(text).replaceAll(/[\t\n]/g, escaped);
}

const escaped = (character: string) => `\\u{${character.codePointAt(0)?.toString(16)}}`;

/** Finds secrets that their form shows: private keys, tokens of known services, JSON Web Tokens. No branch begins with a repetition. */
export const secretForms =
  /-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:gh[pousr]_|github_pat_|glpat-|npm_|sk-|xox[abprs]-|AKIA|ASIA)[\w-]{12,}|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?/g;
