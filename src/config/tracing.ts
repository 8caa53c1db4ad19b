import { ConfigError } from "./errors.ts";

/**
 * Reads from the standard environment of OpenTelemetry if spans are exported: an OTLP endpoint is set, or
 * OTEL_TRACES_EXPORTER is `otlp`. The exporter itself reads the other variables.
 */
export function readTracing(env: Readonly<Record<string, string | undefined>>): boolean {
  const exporters = env.OTEL_TRACES_EXPORTER?.split(",").map((name) => name.trim());
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT;
  const wanted = exporters?.some((name) => name !== "") ? exporters.includes("otlp") : Boolean(endpoint);
  if (!wanted || env.OTEL_SDK_DISABLED?.toLowerCase() === "true") return false;
  const protocol = env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL || env.OTEL_EXPORTER_OTLP_PROTOCOL || "http/protobuf";
  if (protocol === "http/protobuf") return true;
  throw new ConfigError(
    `the environment sets the OTLP protocol "${protocol}", but only http/protobuf is supported; set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf and the endpoint to the collector's HTTP port (usually 4318), or set OTEL_TRACES_EXPORTER to none`,
  );
}
