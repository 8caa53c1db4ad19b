/** One metric with its samples, for the text format of Prometheus. */
export interface Family {
  name: string;
  type: "counter" | "gauge" | "histogram";
  help: string;
  /** Text after the name, one entry per line: labels in braces if there are any, and the value. */
  samples: readonly string[];
}

/** Returns metrics in the text format of Prometheus. */
export function formatFamilies(families: readonly Family[]): string {
  return families
    .flatMap(({ name, type, help, samples }) => [
      `# HELP ${name} ${help}`,
      `# TYPE ${name} ${type}`,
      ...samples.map((sample) => `${name}${sample}`),
    ])
    .map((line) => `${line}\n`)
    .join("");
}

/** Builds a metric without labels. */
export function single(name: string, type: "counter" | "gauge", help: string, value: number): Family {
  return { name, type, help, samples: [` ${value}`] };
}
