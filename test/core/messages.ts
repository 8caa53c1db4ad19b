import { create, type DescField, type DescMessage, type Message, ScalarType } from "@bufbuild/protobuf";
import * as fc from "fast-check";

const text = fc.oneof(
  { weight: 8, arbitrary: fc.string({ unit: "binary" }) },
  { weight: 1, arbitrary: fc.integer({ min: 40, max: 70 }).map((length) => "é".repeat(length)) },
  { weight: 1, arbitrary: fc.constantFrom("\ud800", "a".repeat(127), "xé".repeat(50_000)) },
);
const json = fc.jsonValue({ maxDepth: 4, stringUnit: "binary" });
const jsonObject = fc.dictionary(text, json, { maxKeys: 4 });

const scalars: Partial<Record<ScalarType, fc.Arbitrary<unknown>>> = {
  [ScalarType.STRING]: text,
  [ScalarType.BYTES]: fc.uint8Array({ maxLength: 300 }),
  [ScalarType.BOOL]: fc.boolean(),
  [ScalarType.DOUBLE]: fc.double(),
  [ScalarType.INT32]: fc.integer(),
  [ScalarType.UINT32]: fc.oneof(fc.nat(300), fc.integer({ min: 0, max: 0xffff_ffff })),
  [ScalarType.UINT64]: fc.oneof(
    fc.nat(300).map(BigInt),
    fc.bigInt({ min: 0n, max: 2n ** 53n }),
    fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  ),
};

/** Returns arbitrary messages of a type, with nested ones down to a depth. */
export function anyMessage(schema: DescMessage, depth = 3): fc.Arbitrary<Message> {
  const members = schema.members.map((member) => {
    if (member.kind !== "oneof") return [member.localName, fc.option(fieldValue(member, depth), { nil: undefined })];
    const arms = member.fields.map((arm) =>
      fieldValue(arm, depth).map((value) => (value === undefined ? {} : { case: arm.localName, value })),
    );
    return [member.localName, fc.option(fc.oneof(...arms), { nil: undefined })];
  });
  return fc.record(Object.fromEntries(members)).map((init: Record<string, unknown>) => {
    const set = Object.entries(init).filter(([, value]) => value !== undefined);
    return create(schema, Object.fromEntries(set));
  });
}

function fieldValue(field: DescField, depth: number): fc.Arbitrary<unknown> {
  const one = single(field, depth);
  if (field.fieldKind === "list")
    return depth === 0 && field.message ? fc.constant([]) : fc.array(one, { maxLength: 3 });
  if (field.fieldKind === "map")
    return fc.dictionary(field.mapKey === ScalarType.STRING ? text : fc.nat(300).map(String), one, {
      maxKeys: depth === 0 && field.message ? 0 : 3,
    });
  return one;
}

function single(field: DescField, depth: number): fc.Arbitrary<unknown> {
  if (field.enum) return fc.constantFrom(...field.enum.values.map(({ number }) => number));
  if (field.message) {
    const isJson = field.message.typeName === "google.protobuf.Struct" && !field.parent.typeName.startsWith("google.");
    if (isJson) return jsonObject;
    return depth === 0 ? fc.constant(undefined) : fc.constant(null).chain(() => anyMessage(message(field), depth - 1));
  }
  const scalar = scalars[field.scalar ?? ScalarType.STRING];
  if (scalar === undefined) throw new Error(`no arbitrary for ${field.parent.typeName}.${field.name}`);
  return scalar;
}

function message({ message, name }: DescField): DescMessage {
  if (message === undefined) throw new Error(`${name} holds no message`);
  return message;
}
