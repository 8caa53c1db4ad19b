import { execFile } from "node:child_process";
import { type NetworkInterfaceInfo, networkInterfaces } from "node:os";
import { promisify } from "node:util";
import { UsageError } from "../failure/command-error.ts";

/** An address at which a phone may reach the service. */
export interface PhoneAddress {
  readonly url: string;
  /** The condition under which it works, as text for a person. */
  readonly needs: string;
}

/** Returns the origin of an address for phones; refuses one by which no other device can reach this machine. */
export function phoneAddress(written: string): string {
  const text = written.includes("://") ? written : `https://${written}`;
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol))
    throw new UsageError(`"${written}" is no address`, "name one such as https://tools.example");
  const { hostname, origin } = new URL(text);
  const host = hostname.replace(/\.$/, "");
  if (/^(?:localhost|.*\.localhost|127\..*|\[::1\])$/.test(host))
    throw new UsageError(
      `${host} means the device that opens it: on a phone that is the phone, not this machine`,
      "name an address that leads from the phone to here: --address https://NAME",
    );
  if (host === "0.0.0.0" || host === "[::]")
    throw new UsageError(
      `${host} stands for all addresses of this machine when a service listens, and is none to open`,
      "name one address: --address https://NAME",
    );
  return origin;
}

/** True for an address without TLS: browsers let its pages approve, and not notify. */
export const isPlain = (address: string) => address.startsWith("http:");

/** Finds the addresses of this machine that a phone may reach: its name in a tailnet, and those in the local network. */
export async function findAddresses(env: NodeJS.ProcessEnv, port: string): Promise<PhoneAddress[]> {
  const name = await tailscaleName(env);
  const here = Object.values(networkInterfaces()).flatMap((all: NetworkInterfaceInfo[] = []) => all);
  const local = here.filter(({ internal, family, address }) => !internal && family === "IPv4" && !isTailscale(address));
  return [
    ...(name === "" ? [] : [{ url: `https://${name}`, needs: `\`tailscale serve --bg ${port}\`` }]),
    ...local.map(({ address }) => ({
      url: `https://${address}:${port}`,
      needs: `\`toolgate serve --listen ${address}:${port} --tls-cert FILE --tls-key FILE\``,
    })),
  ];
}

async function tailscaleName(env: NodeJS.ProcessEnv): Promise<string> {
  try {
    const { stdout } = await promisify(execFile)("tailscale", ["status", "--json"], { env, timeout: 5_000 });
    const name: unknown = JSON.parse(stdout).Self?.DNSName;
    return typeof name === "string" && /^[a-z0-9.-]+$/.test(name) ? name.replace(/\.$/, "") : "";
  } catch {
    return "";
  }
}

/** The range that Tailscale gives to machines: its name is the address to use, since its certificate is for that. */
const isTailscale = (address: string) => /^100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\./.test(address);

/** Returns why no console answers at an address; undefined if one does. No credential is sent. */
export async function whyUnreached(address: string): Promise<string | undefined> {
  try {
    const response = await fetch(`${address}/manifest.webmanifest`, {
      redirect: "error",
      signal: AbortSignal.timeout(10_000),
    });
    if (!response.ok) return `it answered ${response.status}`;
    const { name } = (await response.json()) as { name?: unknown };
    return name === "Toolgate" ? undefined : "another page answers there";
  } catch (error) {
    const { code = "" } = (error instanceof Error && (error.cause as { code?: string } | undefined)) || {};
    return /CERT|SIGNED/.test(code) ? `this machine does not trust its certificate (${code})` : code || "no answer";
  }
}
