import { readFileSync, writeFileSync } from "node:fs";

/** Settings that a phone needs: the address, a channel of kind `push`, and requests that go to it. */
export interface PhoneSettings {
  /** The address that is set; undefined if none is. */
  readonly address: string | undefined;
  readonly hasPush: boolean;
}

/** Reads the settings of the phone from the text of a configuration; the service checks the whole file. */
export function readPhoneSettings(file: string): PhoneSettings {
  const text = readFileSync(file, "utf8");
  // Keys at the top come before the first table.
  const [top = ""] = text.split(/^\s*\[/m, 1);
  const [, address] = /^\s*public_url\s*=\s*["']([^"']+)["']/m.exec(top) ?? [];
  return { address, hasPush: /^\s*kind\s*=\s*["']push["']/m.test(text) };
}

/** Returns the lines that are missing in a configuration: those for its top, and those for its end. */
export function missingSettings({ address, hasPush }: PhoneSettings, wanted: string) {
  return {
    top: address === undefined ? [`public_url = ${JSON.stringify(wanted)}`] : [],
    end: hasPush ? [] : ["[channel.phone]", 'kind = "push"', "", "[[notify]]", 'channels = ["phone"]'],
  };
}

/** Adds lines to a configuration. */
export function addSettings(file: string, { top, end }: ReturnType<typeof missingSettings>): void {
  const before = top.map((line) => `${line}\n`).join("");
  const after = end.length === 0 ? "" : `\n${end.join("\n")}\n`;
  writeFileSync(file, `${before}${readFileSync(file, "utf8")}${after}`);
}
