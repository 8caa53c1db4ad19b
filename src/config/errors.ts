/** A bad setting; the message says which one, where it was read, why it is refused and what to do. */
export class ConfigError extends Error {
  override name = "ConfigError";
}
