import type { JsonObject } from "@bufbuild/protobuf";

/** Copies an object as JSON; drops what JSON cannot hold. */
export const plainJson = (value: object): JsonObject => JSON.parse(JSON.stringify(value));
