import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { exportJWK, exportSPKI, generateKeyPair, type JWTPayload, SignJWT } from "jose";

/** An identity provider that sends what a test wants, signed with its own key unless the test signs otherwise. */
export async function startRogueIssuer(clientId: string) {
  const keyPair = await generateKeyPair("RS256", { extractable: true });
  const stranger = await generateKeyPair("RS256", { extractable: true });
  const jwk = { ...(await exportJWK(keyPair.publicKey)), kid: "rsa", use: "sig", alg: "RS256" };
  const codes = new Set<string>();
  let tokens: () => Promise<object> = async () => ({});
  let metadata: object = {};
  let isAway = false;
  const seen: URLSearchParams[] = [];

  const server = createServer(async (request, response) => {
    const { url = "" } = request;
    const send = (body: object, status = 200) => {
      response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
    };
    if (isAway) return void response.writeHead(503).end();
    if (url.endsWith("/.well-known/openid-configuration"))
      return send({
        ...{ issuer, authorization_endpoint: `${issuer}/authorize`, token_endpoint: `${issuer}/token` },
        ...{ jwks_uri: `${issuer}/keys`, authorization_response_iss_parameter_supported: true },
        ...{ response_types_supported: ["code"], subject_types_supported: ["public"] },
        device_authorization_endpoint: `${issuer}/device`,
        id_token_signing_alg_values_supported: ["RS256", "HS256", "none"],
        ...metadata,
      });
    if (url.startsWith("/authorize?")) return void response.writeHead(302, { location: sendBack(url) }).end();
    if (url === "/keys") return send({ keys: [jwk] });
    if (url === "/device")
      return send({
        ...{ device_code: "device-code", user_code: "WDJB-MJHT", verification_uri: `${issuer}/enter` },
        ...{ expires_in: 60, interval: 0.05 },
      });
    let body = "";
    for await (const piece of request) body += piece;
    const form = new URLSearchParams(body);
    seen.push(form);
    const code = form.get("code") ?? "";
    if (form.get("grant_type") === "authorization_code" && !codes.delete(code))
      return send({ error: "invalid_grant" }, 400);
    const answer = await tokens();
    send(answer, "error" in answer ? 400 : 200);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const now = () => Math.floor(Date.now() / 1_000);
  const good = (nonce: string): JWTPayload => ({
    ...{ iss: issuer, aud: clientId, sub: "00u1", nonce, iat: now(), exp: now() + 300 },
    ...{ name: "Ann A.", groups: ["sre", "staff"], sid: "session-1", email: "ann@corp.example" },
  });
  const sign = (payload: JWTPayload, header: object = {}, key: Parameters<SignJWT["sign"]>[0] = keyPair.privateKey) =>
    new SignJWT(payload).setProtectedHeader({ alg: "RS256", kid: "rsa", ...header }).sign(key);

  /** Signs Ann in without a question; returns the address to which her browser goes. */
  function sendBack(url: string): string {
    const asked = new URL(url, issuer).searchParams;
    tokens = async () => ({
      ...{ access_token: "at", token_type: "Bearer", id_token: await sign(good(asked.get("nonce") ?? "")) },
    });
    codes.add("of-ann");
    const response = new URLSearchParams({ code: "of-ann", state: asked.get("state") ?? "", iss: issuer });
    return `${asked.get("redirect_uri")}?${response}`;
  }

  return {
    ...{ issuer, stranger, seen, now, publicKey: await exportSPKI(keyPair.publicKey) },
    /** Makes a code valid, once. */
    allow(code: string) {
      codes.add(code);
      return code;
    },
    /** Sets what the token endpoint answers. */
    answer(next: () => Promise<object>) {
      tokens = next;
    },
    /** Replaces facts of the metadata. */
    publish(next: object) {
      metadata = next;
    },
    setAway(next: boolean) {
      isAway = next;
    },
    ...{ good, sign },
    close: () => server.close(),
  };
}
