import { hash, randomBytes } from "node:crypto";
import {
  type Context,
  defaultTextMapGetter,
  defaultTextMapSetter,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  TraceFlags,
  trace,
} from "@opentelemetry/api";
import { setGlobalErrorHandler, W3CTraceContextPropagator } from "@opentelemetry/core";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-proto";
import { defaultResource, detectResources, envDetector, resourceFromAttributes } from "@opentelemetry/resources";
import { BatchSpanProcessor, TracerProvider } from "@opentelemetry/sdk-trace";
import type { ToolPart } from "../../gen/opencode/tool/v1/tool_pb.ts";
import type { CallObservation, WaitTime } from "../call/observer.ts";
import type { CallRecord } from "../call/ports.ts";
import type { Logger } from "../core/logger.ts";
import { within } from "../core/within.ts";
import type { TraceContext } from "../tool/tool.ts";
import { describeEnd } from "./metrics.ts";

/** Creates a span for each call and each of its steps, and exports them as OTEL_EXPORTER_OTLP_* configures. */
export function createSpans({ version, log }: { version: string; log: Logger }) {
  setGlobalErrorHandler((error) => log.warn("spans could not be exported", { error }));
  const ids = createIds();
  const provider = new TracerProvider({
    resource: defaultResource()
      .merge(resourceFromAttributes({ "service.name": "toolgate", "service.version": version }))
      .merge(detectResources({ detectors: [envDetector] })),
    idGenerator: ids,
    spanProcessors: [new BatchSpanProcessor({ exporter: new OTLPTraceExporter() })],
  });
  const tracer = provider.getTracer("toolgate", version);

  return {
    /**
     * Starts the span of a call at the time when it was accepted, also if that was at another replica. After a wait it links to
     * the span of the run that opened the asks.
     */
    began({ ref, part, spec, epoch, attempts }: CallRecord, wait?: WaitTime): CallObservation {
      const attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": part.tool,
        "gen_ai.tool.call.id": ref.callId,
        "gen_ai.conversation.id": ref.sessionId,
        "gen_ai.agent.name": part.agent,
      };
      const caller = contextOf(spec.trace);
      ids.next = { traceId: hashOf(part.id, 16), spanId: spanIdOf(part.id, epoch, attempts) };
      // A call that waits has no attempt, and the replica that claims it raises the epoch.
      const waiting = { ...ids.next, spanId: spanIdOf(part.id, epoch - 1, 0), traceFlags: TraceFlags.SAMPLED };
      const traceId = trace.getSpanContext(caller)?.traceId ?? ids.next.traceId;
      const links = wait ? [{ context: { ...waiting, traceId } }] : [];
      const options = { kind: SpanKind.SERVER, startTime: spec.accepted, attributes, links };
      const span = tracer.startSpan(`execute_tool ${part.tool}`, options, caller);
      const inside = trace.setSpan(ROOT_CONTEXT, span);
      if (wait) tracer.startSpan("wait", { startTime: wait.from }, inside).end(wait.to);
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
          if (!success && end.state.case !== "pending") span.setStatus({ code: SpanStatusCode.ERROR });
          span.end();
        },
      };
    },
    /** Exports the remaining spans; gives up after 3 s if the collector does not answer. */
    async close(): Promise<void> {
      await within(3_000, provider.shutdown(), () => undefined);
    },
  };
}

/** Creates span ids: random ones, except for the span of a call, so that another replica can link to it. */
function createIds() {
  const ids = {
    /** Ids of the next span. */
    next: undefined as { traceId: string; spanId: string } | undefined,
    generateTraceId: () => ids.next?.traceId ?? randomBytes(16).toString("hex"),
    generateSpanId() {
      const spanId = ids.next?.spanId ?? randomBytes(8).toString("hex");
      ids.next = undefined;
      return spanId;
    },
  };
  return ids;
}

const spanIdOf = (partId: string, epoch: number, attempts: number) => hashOf(`${partId} ${epoch} ${attempts}`, 8);
const hashOf = (text: string, bytes: number) => hash("sha256", text, "hex").slice(0, bytes * 2);

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
