/** Checks if a process exists that is not this one. The service of a container has the id of the one before it, so its own id counts as ended. */
export function isOtherProcessAlive(pid: number): boolean {
  if (pid === process.pid) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EPERM";
  }
}
