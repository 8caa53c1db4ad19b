import { createECDH, randomBytes } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingHttpHeaders } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { onTestFinished } from "vitest";
import { CredentialService } from "../../gen/opencode/tool/v1/credential_service_pb.ts";
import { clientOf } from "../e2e/clients.ts";

const ece: { decrypt(body: Buffer, options: object): Buffer } = createRequire(import.meta.url)("http_ece");

/** Creates the keys of a browser; `http_ece` decrypts what is sent to it. */
export function newBrowser() {
  const keys = createECDH("prime256v1");
  const p256dh = keys.generateKeys();
  const auth = randomBytes(16);
  const decrypt = (body: Buffer, privateKey = keys, authSecret = auth) =>
    ece.decrypt(body, { version: "aes128gcm", privateKey, authSecret: authSecret.toString("base64url") });
  return { p256dh, auth, decrypt };
}

/** Invites a person; returns the code of the first sign-in. */
export async function invite({ url }: { url: string }, newPerson: string): Promise<string> {
  return (await clientOf(CredentialService, url, "admin-token-for-tests").createCode({ newPerson })).code;
}

/** Signs a new person in. */
export async function signIn(service: { url: string }, name: string) {
  const code = await invite(service, name);
  return await clientOf(CredentialService, service.url).signIn({ code, label: "phone" });
}

/** A push that arrived: the path names the subscription. */
export interface Push {
  path: string;
  headers: IncomingHttpHeaders;
  body: Buffer;
}

/** Starts a push service on this machine; it answers each message with the status that its path has then, or 201. */
export async function startPushService() {
  const pushes: Push[] = [];
  const statuses = new Map<string, number>();
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const { url: path = "", headers } = request;
      pushes.push({ path, headers, body: Buffer.concat(chunks) });
      response.writeHead(statuses.get(path) ?? 201).end();
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  const settings = `public_url = "https://gate.example"\n[channel.phone]\nkind = "push"\npush_hosts = ["${host}"]\n[[notify]]\npermission = "bash"\nchannels = ["phone"]\n`;
  return { host, url: `http://${host}`, pushes, statuses, settings };
}
