/** The link that opens the console and signs in with a one-time code; the fragment does not leave the browser. */
export function signInLink(url: string, code: string): string {
  return `${url}/#code=${code}`;
}
