import type { TraceContext } from "../../tool/tool.ts";
import type { RequestHeaders } from "./edge-context.ts";

/** Reads the caller's W3C trace context from the headers; undefined if there is none or it is malformed. */
export function traceContextOf(headers: RequestHeaders): TraceContext | undefined {
  const traceparent = headers.get("traceparent");
  if (traceparent === null || !traceparentPattern.test(traceparent)) return undefined;
  const tracestate = headers.get("tracestate") ?? "";
  return { traceparent, ...(/^[ -~]{1,512}$/.test(tracestate) && { tracestate }) };
}

const traceparentPattern = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
