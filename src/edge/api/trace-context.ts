import type { TraceContext } from "../../tool/tool.ts";

/** The caller's place in a trace, from its headers; undefined if it sent none that fits W3C Trace Context. */
export function traceContextOf(headers: Headers): TraceContext | undefined {
  const traceparent = headers.get("traceparent") ?? "";
  if (!/^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/.test(traceparent))
    return undefined;
  const tracestate = headers.get("tracestate") ?? "";
  return { traceparent, ...(/^[ -~]{1,512}$/.test(tracestate) && { tracestate }) };
}
