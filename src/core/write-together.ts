/** A stream whose writes can be held back. */
interface Corkable {
  readonly writableCorked: number;
  cork(): void;
  uncork(): void;
}

/** Holds back what is written to a stream from now on until the end of this turn, so that it leaves in one write. */
export function writeTogether(stream: Corkable): void {
  if (stream.writableCorked > 0) return;
  stream.cork();
  process.nextTick(() => stream.uncork());
}
