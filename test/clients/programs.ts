import { needPrograms } from "../programs.ts";

/** What the examples in other languages are made with, by Debian's package. */
export default function setup(): void {
  needPrograms([
    ["python3", "python3-venv"],
    ["go", "golang-go"],
  ]);
}
