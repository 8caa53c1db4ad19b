import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import type { StoredSecret } from "../../gen/opencode/tool/v1/channel_service_pb.ts";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import { AnswerMethod, type SignedAnswer, SignedAnswerSchema } from "../../gen/opencode/tool/v1/permission_pb.ts";
import {
  FinishPasskeyRequestSchema,
  type Passkey,
  PersonRecordSchema,
} from "../../gen/opencode/tool/v1/person_service_pb.ts";
import { passkeyPlace } from "../../src/core/passkey-receipt.ts";
import { createPasskeys } from "../../src/people/passkeys.ts";
import { personOf } from "../../src/people/person.ts";
import { createAuthenticator } from "./authenticator.ts";
import { memoryTable } from "./credentials.ts";

const origin = "https://gate.example";

/** A person with a passkey, at a clock that the test moves. */
async function enrolled() {
  const clock = { time: 1_000_000 };
  const person = personOf("local", "ann");
  const signer = { id: "ann", identity: { person, method: AnswerMethod.SESSION }, freshUntil: 1_300_000 };
  const table = memoryTable<Passkey>();
  const passkeys = createPasskeys({
    ...{ table, secrets: memoryTable<StoredSecret>(), place: passkeyPlace(origin) },
    people: { find: () => create(PersonRecordSchema, { id: person.id, person }), noteAbout: async () => {} },
    now: () => clock.time,
  });
  const key = createAuthenticator(origin);
  const register = async () => {
    const { nonce } = await passkeys.begin(signer);
    return create(FinishPasskeyRequestSchema, key.register(nonce));
  };
  const answer: SignedAnswer = create(SignedAnswerSchema, { permissionId: "per_1", personId: person.id });
  return { clock, signer, table, passkeys, key, register, answer };
}

test("a nonce is good for two minutes by the clock of the store, for an answer and for a passkey", async () => {
  const { clock, signer, passkeys, key, register, answer } = await enrolled();
  const refused = { reason: ErrorReason.RECEIPT_REFUSED, message: expect.stringContaining("older than two minutes") };
  const made = await register();
  clock.time += 120_000;
  await expect(passkeys.finish(signer, made)).rejects.toMatchObject(refused);
  clock.time -= 1;
  await passkeys.finish(signer, made);
  const { nonce } = await passkeys.beginStepUp(signer);
  const receipt = key.sign(nonce, answer);
  clock.time += 119_999;
  await passkeys.check(signer, receipt, answer);
  clock.time += 1;
  await expect(passkeys.check(signer, receipt, answer)).rejects.toMatchObject(refused);
});

test("a sign-in adds a passkey in its first five minutes, and a counter never goes back", async () => {
  const { clock, signer, passkeys, key, register, answer } = await enrolled();
  await passkeys.finish(signer, await register());
  clock.time = 1_299_999;
  await passkeys.begin(signer);
  clock.time = 1_300_000;
  await expect(passkeys.begin(signer)).rejects.toMatchObject({ reason: ErrorReason.METHOD_TOO_WEAK });
  const { nonce } = await passkeys.beginStepUp(signer);
  const [first, second] = [key.sign(nonce, answer), key.sign(nonce, answer)];
  await (await passkeys.check(signer, second, answer)).used();
  for (const receipt of [first, second])
    await expect(passkeys.check(signer, receipt, answer)).rejects.toMatchObject({
      reason: ErrorReason.RECEIPT_REFUSED,
    });
});

test("a passkey that is removed while it signs stays removed", async () => {
  const { signer, table, passkeys, key, register, answer } = await enrolled();
  await passkeys.finish(signer, await register());
  const { nonce } = await passkeys.beginStepUp(signer);
  const { used } = await passkeys.check(signer, key.sign(nonce, answer), answer);
  for (const { id } of table.current()) await table.remove(id);
  await used();
  expect(table.current()).toEqual([]);
});

test.each([
  ["https://gate.example", "gate.example"],
  ["https://gate.example:8443", "gate.example"],
  ["http://localhost:4098", "localhost"],
  ["http://gate.example", undefined],
  ["https://192.168.1.2", undefined],
  ["https://[::1]:1", undefined],
  [undefined, undefined],
])("the passkeys of %s belong to %s", (url, domain) => {
  expect(passkeyPlace(url)?.rpId).toBe(domain);
});
