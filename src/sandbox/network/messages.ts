import type { HostPort } from "./target.ts";

/** Messages of the service to the proxy. */
export type ToProxy =
  /** Serves a listening socket, which comes with the message; with `forward` it leads to that address alone. */
  | { case: "open"; network: number; forward?: HostPort }
  | { case: "close"; network: number }
  /** Answers a question; with a refusal the connection ends. */
  | { case: "answer"; question: number; refusal?: string }
  /** Asks for the traffic of a network since the last such message. */
  | { case: "collect"; network: number };

/** Messages of the proxy to the service. */
export type FromProxy =
  | { case: "opened"; network: number }
  /** Asks if a request may go on: to this URL, and once its name is resolved to these IP addresses. */
  | { case: "judge"; network: number; question: number; url: string; addresses?: readonly string[] }
  | { case: "collected"; network: number; traffic: readonly Traffic[] };

/** Connections to one host and port, and the bytes in both directions. */
export interface Traffic {
  host: string;
  port: number;
  connections: number;
  sentBytes: number;
  receivedBytes: number;
}
