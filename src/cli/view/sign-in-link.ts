/** The link that opens the console and signs in with a token; the fragment does not leave the browser. */
export function signInLink(url: string, token: string): string {
  return `${url}/#token=${token}`;
}
