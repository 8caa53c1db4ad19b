import { parentPort } from "node:worker_threads";
import { risksOfCommands } from "../policy/risk.ts";
import { isSimpleLine, type LineReading, readCommands, unreadLine } from "../policy/shell/command.ts";

// Thread of `createLineAnalysis`: reads each line that it gets, and the longer commands of the line by themselves.
const maxReadingLength = 1_048_576;

parentPort?.on("message", (line: string) => {
  const commands = readCommands(line);
  const longer = commands.map(({ text }) => text).filter((text) => text !== line && !isSimpleLine(text));
  const readings = new Map<string, LineReading>([[line, { commands, risks: risksOfCommands(commands) }]]);
  for (const text of longer) readings.set(text, readings.get(text) ?? { commands: readCommands(text) });
  const isLarge = JSON.stringify([...readings]).length > maxReadingLength;
  parentPort?.postMessage(isLarge ? unreadLine(line, "it names too many commands") : readings);
});
parentPort?.postMessage("ready");
