import type { JsonObject, JsonValue } from "@bufbuild/protobuf";
import { Ajv, type ValidateFunction } from "ajv";
import { Ajv2020 } from "ajv/dist/2020.js";
import * as z from "zod";
import { InvalidInput, InvalidOutput } from "./errors.ts";

/** What values have to fit: a zod schema, or a JSON Schema where the tool was not written for zod. */
export type ValueSchema = z.ZodType | JsonObject;

/** What a tool gets of a value that fits. */
export type Decoded<S extends ValueSchema> = S extends z.ZodType ? z.output<S> : JsonObject;

/** How `defineTool` reads input. */
export interface InputCodec {
  readonly schema: JsonObject;
  /** Throws `InvalidInput` with the path of each field that does not fit. */
  decode(value: JsonObject): unknown;
}

/** Reads input for a tool; a JSON Schema's defaults are filled in. Throws if the schema is not one. */
export function inputCodec(tool: string, schema: ValueSchema): InputCodec {
  if (isZod(schema)) {
    return {
      schema: toJsonSchema(schema),
      decode(value) {
        const result = z.safeParse(schema, value);
        if (result.success) return result.data;
        throw new InvalidInput(tool, zodIssues(result.error));
      },
    };
  }
  const check = compile(tool, schema);
  return {
    schema,
    decode(value) {
      const filled = structuredClone(value);
      if (check(filled)) return filled;
      throw new InvalidInput(tool, ajvIssues(check));
    },
  };
}

/** How `defineTool` writes output. */
export interface OutputCodec {
  readonly schema: JsonObject;
  /** The output as JSON; throws `InvalidOutput` if it does not fit. */
  encode(value: unknown): JsonValue;
}

/** Writes what a tool returns. */
export function outputCodec(tool: string, schema: z.ZodType): OutputCodec {
  return {
    schema: toJsonSchema(schema),
    encode(value) {
      const result = z.safeEncode(schema, value);
      if (!result.success) throw new InvalidOutput(tool, zodIssues(result.error));
      return asJson(tool, result.data);
    },
  };
}

/** Whether something is a schema of zod 4, whichever copy of zod made it. */
export function isZod(value: unknown): value is z.ZodType {
  return typeof value === "object" && value !== null && "_zod" in value;
}

function toJsonSchema(schema: z.ZodType): JsonObject {
  // zod writes plain JSON, typed as its own schema type.
  return z.toJSONSchema(schema, {
    io: "input",
    unrepresentable: "any",
    override({ zodSchema, jsonSchema }) {
      // Another copy of zod keeps descriptions in a registry of its own, which only its schemas can read.
      if (jsonSchema.description !== undefined || !("description" in zodSchema)) return;
      if (typeof zodSchema.description === "string") jsonSchema.description = zodSchema.description;
    },
  }) as JsonObject;
}

function compile(tool: string, schema: JsonObject): ValidateFunction {
  // A schema without $schema is of the present draft; the other one that is in use is draft-07.
  const isOld = typeof schema.$schema === "string" && schema.$schema.includes("draft-07");
  const options = { allErrors: true, strict: false, useDefaults: true, validateFormats: false } as const;
  try {
    return (isOld ? new Ajv(options) : new Ajv2020(options)).compile(schema);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new Error(`tool "${tool}" has a schema that is not a JSON Schema: ${why}`, { cause });
  }
}

/** Output is stored and sent as JSON, so it must be the same after a round trip. */
function asJson(tool: string, value: unknown): JsonValue {
  const text = JSON.stringify(value, (_key, part: unknown) => {
    if (typeof part === "number" && !Number.isFinite(part)) throw new InvalidOutput(tool, [notJson(String(part))]);
    if (typeof part === "bigint" || typeof part === "function" || typeof part === "symbol") {
      throw new InvalidOutput(tool, [notJson(`a ${typeof part}`)]);
    }
    return part;
  });
  if (text === undefined) throw new InvalidOutput(tool, [notJson("undefined")]);
  return JSON.parse(text);
}

const notJson = (what: string) => ({ path: "", message: `${what} is not JSON` });

function zodIssues({ issues }: z.core.$ZodError) {
  return issues.map(({ path, message }) => ({ path: path.join("."), message }));
}

function ajvIssues({ errors }: ValidateFunction) {
  return (errors ?? []).map(({ instancePath, message = "does not fit", params }) => ({
    path: instancePath.slice(1).replaceAll("/", "."),
    message: "additionalProperty" in params ? `${message}: ${params.additionalProperty}` : message,
  }));
}
