import { ConfigError } from "./errors.ts";

/**
 * Whether spans are to be sent, as the standard environment of OpenTelemetry says: an OTLP endpoint is named, or
 * OTEL_TRACES_EXPORTER is `otlp`. Where to, and how, the exporter reads by itself.
 */
export function readTracing(env: Readonly<Record<string, string | undefined>>): boolean {
  const exporters = env.OTEL_TRACES_EXPORTER?.split(",").map((name) => name.trim());
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT;
  const wanted = exporters?.some((name) => name !== "") ? exporters.includes("otlp") : Boolean(endpoint);
  if (!wanted || env.OTEL_SDK_DISABLED?.toLowerCase() === "true") return false;
  const protocol = env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL || env.OTEL_EXPORTER_OTLP_PROTOCOL || "http/protobuf";
  if (protocol === "http/protobuf") return true;
  throw new ConfigError(
    `the environment asks for spans over the protocol "${protocol}"; only http/protobuf is spoken: set OTEL_EXPORTER_OTLP_PROTOCOL to it and the endpoint to the collector's HTTP port (usually 4318), or set OTEL_TRACES_EXPORTER to none`,
  );
}
