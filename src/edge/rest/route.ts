import { z } from "zod";
import { ErrorReason } from "../../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { Feed } from "../../call/feed.ts";
import type { Sessions } from "../../call/sessions.ts";
import type { Principal } from "../../core/principal.ts";
import { RequestFailure } from "../api/request-failure.ts";
import type { LocalApi } from "../mcp/local-api.ts";
import type { EventFrames } from "./event-frames.ts";
import type { EventSources } from "./event-json.ts";

/** Domain that the routes read, beside the services. */
export interface RestDomain {
  sources: EventSources;
  sessions: Pick<Sessions, "workspaceAt">;
  feed: Feed<EventFrames>;
}

/** A request for a route. */
export interface RestCall extends RestDomain {
  principal: Principal;
  /** The services, with the checks of roles and messages that a client of the rpcs meets. */
  api: LocalApi;
  /** Returns a part of the path. */
  part: (name: string) => string;
  query: URLSearchParams;
  body: unknown;
  /** Workspace root of the directory that the request names. */
  workspace: string | undefined;
  signal: AbortSignal;
}

/** A method and a path, in which `:name` stands for a part, and what answers it with JSON. */
export interface RestRoute {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  run: (call: RestCall) => Promise<unknown> | unknown;
}

/** Reads the body of a request; throws INVALID_MESSAGE with the field that does not fit. */
export function restBody<Schema extends z.ZodType>({ body }: Pick<RestCall, "body">, schema: Schema): z.output<Schema> {
  const { success, data, error } = schema.safeParse(body ?? {});
  if (success) return data;
  const [issue] = error.issues;
  throw invalidRequest(issue?.path.join(".") ?? "", issue?.message ?? "it does not fit");
}

/** Returns the refusal of a request with a field that the route does not take. */
export function invalidRequest(field: string, fact: string): RequestFailure {
  const where = field === "" ? "the body of the request" : `"${field}" of the request`;
  const options = { reason: ErrorReason.INVALID_MESSAGE, metadata: { field } };
  return new RequestFailure("invalid_argument", `${where} is not valid: ${fact}`, options);
}

/** Schema of data that a client attaches. */
export const metadataSchema = z.record(z.string(), z.json());
