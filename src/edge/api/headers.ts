import type { TraceContext } from "../../tool/tool.ts";
import type { RequestHeaders } from "./edge-context.ts";

/** Headers and trailers that an rpc adds to its response; created when they are first used, since few rpcs have any. */
export class ResponseMetadata {
  #headers: Headers | undefined;
  #trailers: Headers | undefined;

  get headers(): Headers {
    this.#headers ??= new Headers();
    return this.#headers;
  }

  get trailers(): Headers {
    this.#trailers ??= new Headers();
    return this.#trailers;
  }

  /** Returns the headers in the form of Node, the trailers with a prefix of their own if it is given. */
  headerFields(): Record<string, string> {
    return this.#headers === undefined ? {} : Object.fromEntries(this.#headers);
  }

  /** Returns the trailers in the form of Node; each name begins with `prefix`. */
  trailerFields(prefix = ""): Record<string, string> {
    if (this.#trailers === undefined) return {};
    return Object.fromEntries([...this.#trailers].map(([name, value]) => [`${prefix}${name}`, value]));
  }
}

/** Reads the caller's W3C trace context from the headers; undefined if there is none or it is malformed. */
export function traceContextOf(headers: RequestHeaders): TraceContext | undefined {
  const traceparent = headers.get("traceparent");
  if (traceparent === null || !traceparentPattern.test(traceparent)) return undefined;
  const tracestate = headers.get("tracestate") ?? "";
  return { traceparent, ...(/^[ -~]{1,512}$/.test(tracestate) && { tracestate }) };
}

const traceparentPattern = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
