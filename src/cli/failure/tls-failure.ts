import type { ConnectError } from "@connectrpc/connect";
import { terminalSafe } from "../terminal/terminal-safe.ts";

/** Describes a failed TLS handshake and the next step; undefined if the error has another cause. */
export function tlsFailure(error: ConnectError, url: string): { message: string; next: string } | undefined {
  const code = codeOf(error.cause);
  const detail = terminalSafe(error.rawMessage);
  if (/^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_)/.test(code)) {
    return {
      message: `the certificate of ${url} is not trusted (${detail})`,
      next: "name the authority that signed it with --ca FILE",
    };
  }
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return {
      message: `the certificate of ${url} is for another name (${detail})`,
      next: "use a host name that the certificate has",
    };
  }
  // A server without TLS closes the connection, or answers in plain text.
  if (code === "ERR_SSL_WRONG_VERSION_NUMBER" || detail.includes("before secure TLS connection was established")) {
    return { message: `the server at ${url} does not speak TLS`, next: "use http://" };
  }
  if (code === "ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED") {
    return { message: `the server at ${url} requires a client certificate`, next: "add yours with --cert and --key" };
  }
  if (code.startsWith("ERR_OSSL_")) {
    return {
      message: `the client certificate cannot be used (${detail})`,
      next: "name a certificate and its own key, both PEM, with --cert and --key",
    };
  }
  // Plain text to a TLS port, or an untrusted client certificate. Which of the two errors arrives is a race.
  const isCut = url.startsWith("https:") && detail.includes("ECONNRESET");
  if (isCut || detail.startsWith("http/2 stream closed with error code CANCEL")) {
    const next = url.startsWith("https:")
      ? "if it requires client certificates, add one that it trusts with --cert and --key"
      : "if it speaks TLS, use https://";
    return { message: `the server at ${url} closed the connection (${detail})`, next };
  }
  return undefined;
}

function codeOf(cause: unknown): string {
  return cause instanceof Error && "code" in cause ? String(cause.code) : "";
}
