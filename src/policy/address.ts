import { isIP } from "node:net";
import { domainToASCII } from "node:url";
import ipaddr from "ipaddr.js";
import { matcher } from "./wildcard.ts";

/** A web address in the canonical form that rules match, whatever its original spelling. */
export interface Address {
  /** Lower-case scheme and host, no default port, no fragment, `..` resolved, no needless escapes. */
  url: string;
  /** A name without a trailing dot, or an IP address without brackets. */
  host: string;
  /** Empty for the default port of the scheme. */
  port: string;
}

/** Parses an address of http, https or ssh; undefined for any other text. */
export function readAddress(text: string): Address | undefined {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^(https?|ssh):$/.test(url.protocol)) return undefined;
  const { protocol, hostname, port, pathname, search } = url;
  const name = hostname.replace(/\.+$/, "");
  return {
    url: unescapePlain(`${protocol}//${name}${port && `:${port}`}${pathname}${search}`),
    host: name.replace(/^\[|\]$/g, ""),
    port,
  };
}

/**
 * Compiles a rule's pattern for addresses; the pattern may spell scheme and host differently. In a pattern that allows,
 * a `*` in the host matches the host only: it ends where the path begins.
 */
export function addressTest(pattern: string, allows: boolean): (url: string) => boolean {
  const parts = partsOf(pattern);
  const whole = matcher(parts ? parts.join("") : pattern);
  if (!parts) return whole;
  const [scheme, authority, path] = parts;
  // `https://example.com*` would allow `https://example.com.evil.net`, which no author of a rule means.
  const endsOpen = path === "" && /[^*?:]\*$/.test(authority);
  const tests = [matcher(scheme), matcher(endsOpen ? authority.slice(0, -1) : authority), matcher(path || "*")];
  const byPart = (url: string) => {
    const shown = partsOf(url);
    return shown !== undefined && tests.every((meets, i) => meets(shown[i] ?? ""));
  };
  return allows ? byPart : (url) => byPart(url) || whole(url);
}

/** Returns which of an address's host and port a pattern spells out, without a wildcard. */
export function namesIn(pattern: string, { host, port }: Pick<Address, "host" | "port">) {
  const named = splitAuthority(partsOf(pattern)?.[1] ?? "");
  return {
    host: named.host.replace(/^\[|\]$/g, "") === host,
    // `host:*` names every port of the host.
    port: named.port === port || (named.port === "*" && named.host !== "" && !/[*?]/.test(named.host)),
  };
}

/** Returns the reason why a host is not on the public web; undefined if it is. */
export function privateHost(host: string): string | undefined {
  if (isIP(host) !== 0) {
    const range = rangeOf(ipaddr.parse(host));
    return range === "unicast" ? undefined : `${host} is not a public address (${range})`;
  }
  if (!host.includes(".")) return `${host} is a name of this machine or its network`;
  if (privateNames.some((meets) => meets(`.${host}`)))
    return `${host} is a name of this machine, its network or its cloud`;
  return undefined;
}

/** Checks if a server could read the path differently from rules, because of an encoded `..`. */
export function isAmbiguous({ url }: Pick<Address, "url">): boolean {
  let path = url.replace(/[?].*$/s, "");
  // A server and each proxy in front of it may decode once.
  for (let i = 0; i < 5 && path.includes("%"); i++) {
    const decoded = path.replace(/%([0-7][0-9a-f])/gi, (_, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
    if (decoded === path) break;
    path = decoded;
  }
  return path.split(/[/\\]/).some((segment) => /^\.\.?(;.*)?$/.test(segment)) || path.includes("\\");
}

/** Returns the kind of an address's range; for a tunnel address the kind of the tunnel. */
function rangeOf(address: ipaddr.IPv4 | ipaddr.IPv6): string {
  if (address instanceof ipaddr.IPv4) {
    // A public number, but at Azure it is the host's metadata service.
    return address.toString() === "168.63.129.16" ? "cloud" : address.range();
  }
  const [first = 0] = address.parts;
  const range = address.range();
  if (range !== "unicast") return range;
  // Only 2000::/3 is allocated; `::127.0.0.1` is outside of it.
  if (first < 0x2000 || first > 0x3fff) return "reserved";
  const interfaceId = address.parts.slice(4, 6);
  const isatap = (interfaceId[0] === 0 || interfaceId[0] === 0x200) && interfaceId[1] === 0x5efe;
  return isatap ? "isatap" : range;
}

/** Names that resolve to this machine, its network or its cloud, and public domains whose names resolve to any chosen address. */
const privateNames = [
  "localhost local localdomain internal intranet private corp lan home home.arpa svc",
  "metadata.goog metadata.tencentyun.com metadata.packet.net metadata.platformequinix.com",
  "localtest.me lvh.me vcap.me lacolhost.com nip.io sslip.io xip.io traefik.me",
]
  .flatMap((names) => names.split(" "))
  .map((name) => matcher(`*.${name}`));

/** Splits an address or pattern into scheme with `://`, host with port, and path; undefined without a scheme. */
function partsOf(text: string): [string, string, string] | undefined {
  const [, scheme = "", authority = "", path = ""] = /^([a-z*?]+:\/\/)([^/]*)(.*)$/is.exec(text) ?? [];
  if (scheme === "") return undefined;
  const { host, port } = splitAuthority(authority.toLowerCase());
  const ownPort = { "http://": "80", "https://": "443" }[scheme.toLowerCase()];
  const shownPort = port === undefined || port === ownPort ? "" : `:${port}`;
  // Without a path and wildcards it is the root page of the host.
  const rest = path === "" && !/[*?]/.test(authority) ? "/" : path;
  return [scheme.toLowerCase(), canonicalHost(host) + shownPort, unescapePlain(rest)];
}

function splitAuthority(authority: string): { host: string; port: string | undefined } {
  const [, host = authority, port] = /^(\[[^\]]*\]|[^:]*)(?::([\d*?]+))?$/.exec(authority) ?? [];
  return { host, port };
}

/** Normalizes a host of a pattern to the spelling of addresses; one with wildcards stays as it is. */
function canonicalHost(host: string): string {
  if (/[*?]/.test(host)) return domainToASCII(host) || host;
  return URL.canParse(`http://${host}/`) ? new URL(`http://${host}/`).hostname.replace(/\.+$/, "") : host;
}

/** Decodes escaped letters, digits, `-`, `.`, `_` and `~`; writes other escapes in upper case. */
function unescapePlain(url: string): string {
  return url.replace(/%[0-9a-f]{2}/gi, (escaped) => {
    const character = String.fromCharCode(Number.parseInt(escaped.slice(1), 16));
    return /[\w.~-]/.test(character) ? character : escaped.toUpperCase();
  });
}
