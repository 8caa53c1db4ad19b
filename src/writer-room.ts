import { BinaryWriter } from "@bufbuild/protobuf/wire";

/*
 * Has the writers of messages pass on their room to each other. Each begins with 128 bytes else, and doubles them until they are
 * enough, which is two thirds of the time that it takes to encode a call's messages, and a seventh of what a call costs.
 */

/** What a writer has inside: it looks for more room before it writes, and gives away a copy of what it wrote. */
interface Inside {
  buffer: Uint8Array;
  viewCache: DataView;
  ensureCapacity(size: number): void;
  finish(): Uint8Array;
}

const roomBytes = 65_536;
const maxStored = 1_048_576;
const nothing = new Uint8Array(0);
const noView = new DataView(nothing.buffer);

const writer = BinaryWriter.prototype as unknown as Inside;
const { ensureCapacity, finish } = writer;
let free: Uint8Array | undefined;

writer.ensureCapacity = function (size) {
  if (this.buffer.length === 0) {
    this.buffer = free ?? new Uint8Array(roomBytes);
    free = undefined;
  }
  ensureCapacity.call(this, size);
};

writer.finish = function () {
  const written = finish.call(this);
  // One that failed before it came here keeps its room, and the next one gets another.
  if (this.buffer.length > 0 && this.buffer.length <= maxStored) free = this.buffer;
  this.buffer = nothing;
  this.viewCache = noView;
  return written;
};
