/** The public module `toolgate`: runs the service inside another program. */
export { type Server, startServer } from "./compose/server.ts";
export {
  type Config,
  ConfigError,
  type Environment,
  type Flags,
  loadConfig,
  readEnvironment,
} from "./config/config.ts";
export { createLogger, type Logger, type LogLevel } from "./core/logger.ts";
export type { DefinedTool as Tool } from "./tool/tool.ts";
