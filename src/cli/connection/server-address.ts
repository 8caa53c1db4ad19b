import { readFileSync } from "node:fs";
import { defaultUrl } from "../../client/find-server.ts";
import type { Certificates } from "../../client/verified-socket.ts";
import { UsageError } from "../failure/command-error.ts";

/** The options that name the server and the credentials. */
export interface ServerOptions {
  server?: string;
  token?: string;
  tokenFile?: string;
  ca?: string;
  cert?: string;
  key?: string;
}

/** The server's address: --server, otherwise TOOLGATE_URL, otherwise the default; `host:port` alone means plain HTTP. */
export function serverUrl({ server }: ServerOptions, env: NodeJS.ProcessEnv): string {
  const text = server ?? (env.TOOLGATE_URL || defaultUrl);
  const url = text.includes("://") ? text : `http://${text}`;
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
    throw new UsageError(`"${text}" is not the address of a server`, `use one like ${defaultUrl}`);
  return url.replace(/\/+$/, "");
}

/** Reads the files that --ca, --cert and --key (or their environment variables) name. */
export function readCertificates(options: ServerOptions, env: NodeJS.ProcessEnv): Certificates {
  const ca = options.ca ?? (env.TOOLGATE_CA || undefined);
  const cert = options.cert ?? (env.TOOLGATE_CERT || undefined);
  const key = options.key ?? (env.TOOLGATE_KEY || undefined);
  if ((cert === undefined) !== (key === undefined)) {
    throw new UsageError("a client certificate is a certificate and its key", "give both --cert and --key");
  }
  return {
    ...(ca !== undefined && { ca: readCertificate("--ca", ca) }),
    ...(cert !== undefined && { cert: readCertificate("--cert", cert) }),
    ...(key !== undefined && { key: readCertificate("--key", key) }),
  };
}

function readCertificate(option: string, file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch (cause) {
    throw new UsageError(`${file} cannot be read`, `name a readable PEM file with ${option}`, { cause });
  }
}
