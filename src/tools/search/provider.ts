import { createHash } from "node:crypto";
import type { JsonObject } from "@bufbuild/protobuf";
import type { LocalSearch, RemoteSearch } from "../../core/search-providers.ts";

/** The request for one search; its path is appended to the base address. */
export interface SearchRequest {
  readonly path: string;
  readonly search?: Readonly<Record<string, string>>;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent by POST; without it the request is a GET. */
  readonly json?: JsonObject;
  /** The status codes that mean something else at this provider, with their text for the model. */
  readonly statuses?: Readonly<Record<number, string>>;
}

/** The answer of a provider with status 200. The key does not occur in it. */
export interface SearchAnswer {
  json(): Promise<unknown>;
  events(): AsyncIterable<{ event?: string | undefined; data: string }>;
}

/** Translates searches to the form of one provider, and its answers to results. */
export interface SearchAdapter<Query, Result> {
  request(query: Query, key: string | undefined): SearchRequest;
  /** Throws for an answer in another form. */
  read(answer: SearchAnswer, query: Query): Promise<Result[]>;
}

/** A search of the web, in the words of the tool's input. */
export interface WebQuery {
  readonly query: string;
  readonly numResults: number;
  readonly type: "auto" | "fast" | "deep";
  readonly livecrawl: "fallback" | "preferred";
  readonly contextMaxCharacters: number;
}

/** A page that a web search found; all of it is untrusted. */
export interface WebResult {
  readonly url?: string | undefined;
  readonly title?: string | undefined;
  /** A date in any form. */
  readonly published?: string | undefined;
  readonly content: string;
}

/** A search of code, in the words of the tool's input. */
export interface CodeQuery {
  readonly query: string;
  readonly language: readonly string[];
  readonly repo?: string | undefined;
  readonly path?: string | undefined;
  readonly useRegexp: boolean;
}

/** A file that a code search found; all of it is untrusted. */
export interface CodeResult {
  readonly repo: string;
  readonly path: string;
  readonly url?: string | undefined;
  /** Matching lines, numbered from 1. */
  readonly lines: readonly { number?: number | undefined; text: string }[];
}

/** Digest of where a search goes, so that an approval does not hold for a provider that was configured later. */
export function placeDigest(settings: RemoteSearch | LocalSearch): string {
  const place = "url" in settings ? settings.url : settings.roots;
  return createHash("sha256")
    .update(JSON.stringify([settings.provider, place]))
    .digest("hex");
}
