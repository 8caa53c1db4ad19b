import {
  type Source,
  SourceAcceptance,
  SourceKind,
  SourceState,
} from "../../gen/opencode/tool/v1/source_service_pb.ts";
import { type Family, formatFamilies } from "./families.ts";

/** Returns the metrics of the sources of tools. */
export function sourceMetrics(sources: readonly Source[]): string {
  if (sources.length === 0) return "";
  const family = (name: string, type: Family["type"], help: string, measure: (source: Source) => number): Family => ({
    ...{ name, type, help },
    samples: sources.map((source) => `{${labelsOf(source)}} ${measure(source)}`),
  });
  return formatFamilies([
    family(
      "toolgate_source_ready",
      "gauge",
      "1 if the source of tools is connected, or its process runs.",
      ({ state }) => (state === SourceState.READY ? 1 : 0),
    ),
    family("toolgate_source_restarts_total", "counter", "Connections after the first one.", ({ restarts }) => restarts),
    family("toolgate_source_memory_bytes", "gauge", "Resident memory of the processes.", ({ memoryBytes }) =>
      Number(memoryBytes),
    ),
    family(
      "toolgate_source_unaccepted_tools",
      "gauge",
      "Tools that are new or changed and not offered.",
      countUnaccepted,
    ),
  ]);
}

/** Names a source: a tool process by its path and its workspace. */
function labelsOf({ kind, name, workspace }: Source): string {
  const source = `source="${escaped(name)}"`;
  return kind === SourceKind.TOOL_PROCESS ? `${source},workspace="${escaped(workspace)}"` : source;
}

const escaped = (value: string) => value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");

function countUnaccepted({ tools }: Source): number {
  const isUnaccepted = (acceptance: SourceAcceptance) =>
    acceptance === SourceAcceptance.NEW || acceptance === SourceAcceptance.CHANGED;
  return tools.filter(({ acceptance }) => isUnaccepted(acceptance)).length;
}
