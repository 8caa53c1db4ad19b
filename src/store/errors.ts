import packageJson from "../../package.json" with { type: "json" };

/** A store that cannot be opened; the message names the store, the reason and the next step. */
export class StoreUnusable extends Error {
  override name = "StoreUnusable";
}

/** Refuses a store whose format a later version has raised above the one that this version knows. */
export function laterFormat(
  store: string,
  { format, version }: { format: number; version: string | undefined },
  known: number,
): StoreUnusable {
  // Unreleased builds share a number.
  const isNamed = version !== undefined && version !== packageJson.version;
  const [writer, next] = isNamed ? [`Toolgate ${version}`, `${version} or later`] : ["a later Toolgate", "that one"];
  return new StoreUnusable(
    `${store} has format ${format}, written by ${writer}; this one (${packageJson.version}) knows up to format ${known}: start ${next}, or use another store`,
  );
}

/** Refuses a store that replicas of an earlier format use. */
export function earlierFormatRuns(store: string, { format, known }: { format: number; known: number }): StoreUnusable {
  return new StoreUnusable(
    `${store} is in use by replicas of an earlier Toolgate (format ${format}), and this one (${packageJson.version}) writes format ${known}: stop all of them, then start this one, which continues their calls`,
  );
}
