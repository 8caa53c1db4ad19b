/** Text, indented below a line of the demo. */
export function indented(text: string): string {
  return text.trimEnd().replaceAll(/^/gm, "     ");
}
