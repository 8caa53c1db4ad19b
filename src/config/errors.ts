/** An invalid setting. The message names the setting, its source, the reason and the next step. */
export class ConfigError extends Error {
  override name = "ConfigError";
}
