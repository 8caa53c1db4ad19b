import { needPrograms } from "../programs.ts";

/** Programs that build the examples in other languages, by Debian's package. */
export default function setup(): void {
  needPrograms([
    ["python3", "python3-venv"],
    ["go", "golang-go"],
  ]);
}
