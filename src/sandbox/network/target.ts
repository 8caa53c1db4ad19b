/** A host and port. */
export interface HostPort {
  host: string;
  port: number;
}

/** Destination of a request to the proxy. */
export interface RequestTarget extends HostPort {
  /** The address that rules judge: of a tunnel the root of its host, of a plain request the whole URL. */
  url: string;
}

/** Reads the authority of a CONNECT request; undefined if it is invalid. Port 22 is judged as ssh, all others as https. */
export function tunnelTarget(authority: string | undefined): RequestTarget | undefined {
  const [, host = "", port = ""] = /^(\[[0-9a-f:.]+\]|[a-z0-9_.-]+):(\d{1,5})$/i.exec(authority ?? "") ?? [];
  if (host === "" || !URL.canParse(`https://${host}:${port}/`)) return undefined;
  const url = readable(new URL(`https://${host}:${port}/`));
  const target = { host: bare(url.hostname), port: Number(port) };
  return { ...target, url: target.port === 22 ? `ssh://${url.hostname}/` : url.href };
}

/** Reads the address of a plain request; undefined if it is not one of http, or names a user. */
export function requestTarget(address: string | undefined): RequestTarget | undefined {
  if (!address?.startsWith("http://") || !URL.canParse(address)) return undefined;
  const url = readable(new URL(address));
  if (url.username !== "" || url.password !== "") return undefined;
  return { host: bare(url.hostname), port: Number(url.port || 80), url: url.href };
}

/** Returns the address of the whole host of a URL, which a person is asked about. */
export function hostOf(url: string): string {
  return new URL("/", url).href;
}

function readable(url: URL): URL {
  url.hash = "";
  url.hostname = url.hostname.replace(/\.$/, "");
  return url;
}

const bare = (hostname: string) => hostname.replace(/^\[|\]$/g, "");

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
