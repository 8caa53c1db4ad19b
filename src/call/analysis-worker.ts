import { parentPort } from "node:worker_threads";
import { type Command, isSimpleLine, readCommands, unreadLine } from "../policy/shell/command.ts";

// Thread of `createLineAnalysis`: reads each line that it gets, and the longer commands of the line by themselves.
const maxReadingLength = 1_048_576;

parentPort?.on("message", (line: string) => {
  const commands = readCommands(line);
  const longer = commands.map(({ text }) => text).filter((text) => text !== line && !isSimpleLine(text));
  const reading: [string, Command[]][] = [[line, commands]];
  for (const text of new Set(longer)) reading.push([text, readCommands(text)]);
  const isLarge = JSON.stringify(reading).length > maxReadingLength;
  parentPort?.postMessage(isLarge ? [[line, unreadLine(line, "it names too many commands")]] : reading);
});
parentPort?.postMessage("ready");
