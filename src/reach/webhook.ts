import { createHmac, createPrivateKey, type KeyObject, sign } from "node:crypto";
import { eventOf } from "./message.ts";
import type { Channel, ChannelContent } from "./ports.ts";
import { answerOf, type ProviderTarget, post } from "./post.ts";

/** A key with which a webhook signs. */
export type WebhookKey = { readonly secret: Buffer } | { readonly privateKey: KeyObject };

/**
 * Reads a key as Standard Webhooks writes it: `whsec_` and 24 to 64 bytes in base64, or `whsk_` and an ed25519 key (its seed of 32
 * bytes, or seed and public key). Throws without the text of the key.
 */
export function readWebhookKey(written: string): WebhookKey {
  const [, kind, text = ""] = /^(whsec|whsk)_([A-Za-z0-9+/]+={0,2})$/.exec(written) ?? [];
  const bytes = Buffer.from(text, "base64");
  if (kind === "whsec" && bytes.length >= 24 && bytes.length <= 64) return { secret: bytes };
  if (kind === "whsk" && (bytes.length === 32 || bytes.length === 64)) {
    const der = Buffer.concat([ed25519Header, bytes.subarray(0, 32)]);
    return { privateKey: createPrivateKey({ key: der, format: "der", type: "pkcs8" }) };
  }
  throw new Error(
    "a key of a webhook is `whsec_` and 24 to 64 bytes in base64, or `whsk_` and 32 or 64 bytes in base64",
  );
}

/** The bytes of PKCS #8 before the seed of an ed25519 key. */
const ed25519Header = Buffer.from("302e020100300506032b657004220420", "hex");

/** Signs a body by Standard Webhooks 1.0.0: one signature for each key, so that a receiver accepts the old one while keys change. */
export function signatureOf(keys: readonly WebhookKey[], id: string, seconds: number, body: string): string {
  const content = `${id}.${seconds}.${body}`;
  return keys
    .map((key) =>
      "secret" in key
        ? `v1,${createHmac("sha256", key.secret).update(content).digest("base64")}`
        : `v1a,${sign(null, Buffer.from(content), key.privateKey).toString("base64")}`,
    )
    .join(" ");
}

/** Creates the channel that posts signed events (Standard Webhooks). */
export function createWebhook({
  target,
  keys,
  content,
  now,
}: {
  target: ProviderTarget;
  keys: readonly WebhookKey[];
  content: ChannelContent;
  /** Time of day, which receivers compare with theirs. */
  now: () => number;
}): Channel {
  return {
    ...{ kind: "webhook", content },
    async send(notice, signal) {
      const time = now();
      const body = JSON.stringify(eventOf(notice, content, time));
      const seconds = Math.floor(time / 1_000);
      const headers = {
        "webhook-id": notice.id,
        "webhook-timestamp": String(seconds),
        "webhook-signature": signatureOf(keys, notice.id, seconds, body),
      };
      return answerOf(await post(target, { headers, body, signal }));
    },
  };
}
