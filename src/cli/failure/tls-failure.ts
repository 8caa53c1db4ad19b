import type { ConnectError } from "@connectrpc/connect";
import { terminalSafe } from "../terminal/terminal-safe.ts";

/** Says why the two ends did not come to terms about TLS, and what to do; undefined if that was not the matter. */
export function tlsFailure(error: ConnectError, url: string): { message: string; next: string } | undefined {
  const code = codeOf(error.cause);
  const said = terminalSafe(error.rawMessage);
  if (/^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_)/.test(code)) {
    return {
      message: `the certificate of ${url} is not trusted (${said})`,
      next: "name the authority that signed it with --ca FILE",
    };
  }
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return { message: `${url} has the certificate of another name (${said})`, next: "call it by a name that fits" };
  }
  if (code === "ERR_SSL_WRONG_VERSION_NUMBER") {
    return { message: `the server at ${url} does not speak TLS`, next: "name it with http://" };
  }
  if (code === "ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED") {
    return { message: `the server at ${url} wants a client certificate`, next: "give yours with --cert and --key" };
  }
  if (code.startsWith("ERR_OSSL_")) {
    return {
      message: `the client certificate cannot be used (${said})`,
      next: "name a certificate and its own key, both PEM, with --cert and --key",
    };
  }
  // So it looks in clear at a port with TLS, and with a client certificate that the server does not trust.
  // Which of the two errors comes depends on who is quicker.
  const isCut = url.startsWith("https:") && said.includes("ECONNRESET");
  if (isCut || said.startsWith("http/2 stream closed with error code CANCEL")) {
    const next = url.startsWith("https:")
      ? "if it wants client certificates, give one that it trusts with --cert and --key"
      : "if it speaks TLS, name it with https://";
    return { message: `the server at ${url} hung up (${said})`, next };
  }
  return undefined;
}

function codeOf(cause: unknown): string {
  return cause instanceof Error && "code" in cause ? String(cause.code) : "";
}
