import {
  type Context,
  defaultTextMapGetter,
  defaultTextMapSetter,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  trace,
} from "@opentelemetry/api";
import { setGlobalErrorHandler, W3CTraceContextPropagator } from "@opentelemetry/core";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { defaultResource, detectResources, envDetector, resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, TracerProvider } from "@opentelemetry/sdk-trace";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallObservation } from "../call/observer.ts";
import type { CallRecord } from "../call/ports.ts";
import type { Logger } from "../core/logger.ts";
import type { TraceContext } from "../tool/tool.ts";
import { describeEnd } from "./end.ts";

/** Creates a span for each call and each of its steps, and exports them as OTEL_EXPORTER_OTLP_* configures. */
export function createSpans({ version, log }: { version: string; log: Logger }) {
  setGlobalErrorHandler((error) => log.warn("spans could not be exported", { error }));
  const provider = new TracerProvider({
    resource: defaultResource()
      .merge(resourceFromAttributes({ "service.name": "toolgate", "service.version": version }))
      .merge(detectResources({ detectors: [envDetector] })),
    spanProcessors: [new BatchSpanProcessor({ exporter: new OTLPTraceExporter() })],
  });
  const tracer = provider.getTracer("toolgate", version);

  return {
    /** Starts the span of a call at the time when it was accepted, also if that was at a replica that died. */
    began({ ref, part, spec }: CallRecord): CallObservation {
      const attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": part.tool,
        "gen_ai.tool.call.id": ref.callId,
        "gen_ai.conversation.id": ref.sessionId,
        "gen_ai.agent.name": part.agent,
      };
      const options = { kind: SpanKind.SERVER, startTime: spec.accepted, attributes };
      const span = tracer.startSpan(`execute_tool ${part.tool}`, options, contextOf(spec.trace));
      const inside = trace.setSpan(ROOT_CONTEXT, span);
      return {
        async step(name, work) {
          const step = tracer.startSpan(name, {}, inside);
          try {
            return await work(traceOf(trace.setSpan(ROOT_CONTEXT, step)));
          } catch (error) {
            step.setStatus({ code: SpanStatusCode.ERROR });
            throw error;
          } finally {
            step.end();
          }
        },
        over(end: ToolPart) {
          const { success, reason, commandFailure } = describeEnd(end);
          span.setAttribute("toolgate.call.state", end.state.case ?? "");
          if (reason !== undefined) span.setAttribute("error.type", reason);
          if (commandFailure) span.setAttribute("error.type", "command_failed");
          if (!success) span.setStatus({ code: SpanStatusCode.ERROR });
          span.end();
        },
      };
    },
    /** Exports the remaining spans; gives up after 3 s if the collector does not answer. */
    async close(): Promise<void> {
      const { promise: late, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, 3_000);
      await Promise.race([provider.shutdown(), late]);
      clearTimeout(timer);
    },
  };
}

const propagator = new W3CTraceContextPropagator();

function contextOf(caller: TraceContext | undefined): Context {
  return caller ? propagator.extract(ROOT_CONTEXT, caller, defaultTextMapGetter) : ROOT_CONTEXT;
}

function traceOf(context: Context): TraceContext {
  const headers: Record<string, string> = {};
  propagator.inject(context, headers, defaultTextMapSetter);
  const { traceparent = "", tracestate } = headers;
  return { traceparent, ...(tracestate !== undefined && { tracestate }) };
}
