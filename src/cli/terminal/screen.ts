import { styleText } from "node:util";
import { type DescMessage, type MessageShape, toJsonString } from "@bufbuild/protobuf";
import type { CliProcess, OutputStream } from "../context.ts";
import type { CommandFailure } from "../failure/failure.ts";

/** Colours text if its stream shows colours. */
export type Paint = (format: Parameters<typeof styleText>[0], text: string) => string;

/** Output of a command: results to stdout, messages for the person to stderr. */
export interface Screen {
  readonly json: boolean;
  /** The streams and the environment of the command. */
  readonly io: CliProcess;
  /** Colours in tool output may pass to stdout. */
  readonly coloured: boolean;
  readonly paint: { readonly out: Paint; readonly err: Paint };
  /** Writes a part of the result unchanged. */
  write(text: string | Uint8Array): void;
  /** Writes a message as one line of JSON to stdout. */
  emit<D extends DescMessage>(schema: D, message: MessageShape<D>): void;
  /** Writes a message of the result: as JSON under --json, otherwise as lines. */
  show<D extends DescMessage>(schema: D, message: MessageShape<D>, lines: (paint: Paint) => readonly string[]): void;
  /** Writes another value of the result: as one line of JSON under --json, otherwise as lines. */
  result(value: object, lines: (paint: Paint) => readonly string[]): void;
  /** Prints a line about progress, except under --json. */
  note(text: string): void;
  /** Prints a line also under --json. */
  alert(text: string): void;
  fail(failure: CommandFailure): void;
  /** Sets the last line, which is redrawn every second, on a terminal only; undefined removes it. */
  status(text: (() => string) | undefined): void;
}

/** Creates the screen of one command. */
export function createScreen(io: CliProcess, json: boolean): Screen {
  const { stdout, stderr } = io;
  // The cursor is in the middle of a line of stdout, so text on stderr would be appended to that line.
  let midLine = false;
  const status = createStatus(stderr, () => !midLine);
  const paintFor =
    (stream: OutputStream): Paint =>
    (format, text) =>
      styleText(format, text, { stream });
  const out = paintFor(stdout);
  const err = paintFor(stderr);

  function write(text: string | Uint8Array): void {
    if (text.length === 0) return;
    status.hide();
    stdout.write(text);
    midLine = stdout.isTTY === true && text.at(-1) !== "\n" && text.at(-1) !== 10;
    status.show();
  }
  function emit<D extends DescMessage>(schema: D, message: MessageShape<D>): void {
    write(`${toJsonString(schema, message)}\n`);
  }
  function alert(text: string): void {
    status.hide();
    if (midLine) stdout.write("\n");
    midLine = false;
    stderr.write(`${text}\n`);
    status.show();
  }
  return {
    json,
    io,
    coloured: stdout.isTTY === true && stdout.hasColors?.() === true,
    paint: { out, err },
    write,
    emit,
    show(schema, message, lines) {
      if (json) emit(schema, message);
      else for (const line of lines(out)) write(`${line}\n`);
    },
    result(value, lines) {
      for (const line of json ? [JSON.stringify(value)] : lines(out)) write(`${line}\n`);
    },
    note: (text) => {
      if (!json) alert(text);
    },
    alert,
    fail({ message, next }) {
      status.set(undefined);
      alert(`${err("red", "error:")} ${message}`);
      if (next !== "") alert(`${err("dim", " next:")} ${next}`);
    },
    status: (text) => status.set(json ? undefined : text),
  };
}

function createStatus(stderr: OutputStream, isFree: () => boolean) {
  let text: (() => string) | undefined;
  let timer: NodeJS.Timeout | undefined;
  let drawn = false;
  function hide(): void {
    if (drawn) stderr.write("\r\x1b[K");
    drawn = false;
  }
  function show(): void {
    if (!text || !stderr.isTTY || !isFree()) return;
    hide();
    stderr.write(styleText("dim", text().slice(0, (stderr.columns || 80) - 1), { stream: stderr }));
    drawn = true;
  }
  return {
    hide,
    show,
    set(next: (() => string) | undefined) {
      hide();
      clearInterval(timer);
      text = next;
      if (next) timer = setInterval(show, 1_000).unref();
      show();
    },
  };
}
