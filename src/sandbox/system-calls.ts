/** The processor architectures for which the filter of system calls is known. */
export type FilterArchitecture = "x64" | "arm64";

/** Numbers of a system call. */
type Numbers = Readonly<Record<FilterArchitecture, number>>;

/** Numbers of the architectures in the kernel's record of a system call. */
export const auditArchitecture: Numbers = { x64: 0xc000003e, arm64: 0xc00000b7 };

/** Numbers from here on are system calls of the x32 variant of x64, for which no other number in the filter holds. */
export const firstX32Number = 0x40000000;

/** System calls that the filter judges by an argument. */
export const judgedCalls = {
  clone: { x64: 56, arm64: 220 },
  clone3: { x64: 435, arm64: 435 },
  ioctl: { x64: 16, arm64: 29 },
  openat2: { x64: 437, arm64: 437 },
  socket: { x64: 41, arm64: 198 },
} satisfies Record<string, Numbers>;

/**
 * System calls that give a file a mode, by the positions of the mode and, where it counts only for new files, of the flags. The
 * kernel ignores set-ID bits of `mkdir`.
 */
export const modeCalls: Readonly<Record<string, Partial<Numbers> & { mode: number; flags?: number }>> = {
  chmod: { x64: 90, mode: 1 },
  fchmod: { x64: 91, arm64: 52, mode: 1 },
  fchmodat: { x64: 268, arm64: 53, mode: 2 },
  fchmodat2: { x64: 452, arm64: 452, mode: 2 },
  open: { x64: 2, mode: 2, flags: 1 },
  openat: { x64: 257, arm64: 56, mode: 3, flags: 2 },
  creat: { x64: 85, mode: 1 },
  mknod: { x64: 133, mode: 1 },
  mknodat: { x64: 259, arm64: 33, mode: 2 },
};

/** System calls with which a process reads or controls another one; the switch `ptrace` permits them. */
export const tracingCalls = {
  ptrace: { x64: 101, arm64: 117 },
  process_vm_readv: { x64: 310, arm64: 270 },
  process_vm_writev: { x64: 311, arm64: 271 },
  kcmp: { x64: 312, arm64: 272 },
} satisfies Record<string, Numbers>;

/** System calls that no command needs, and that reach the kernel's administration or its rarely used parts. */
export const refusedCalls = {
  // Mounts and namespaces: a command must not change what it sees.
  mount: { x64: 165, arm64: 40 },
  umount2: { x64: 166, arm64: 39 },
  pivot_root: { x64: 155, arm64: 41 },
  open_tree: { x64: 428, arm64: 428 },
  move_mount: { x64: 429, arm64: 429 },
  fsopen: { x64: 430, arm64: 430 },
  fsconfig: { x64: 431, arm64: 431 },
  fsmount: { x64: 432, arm64: 432 },
  fspick: { x64: 433, arm64: 433 },
  mount_setattr: { x64: 442, arm64: 442 },
  open_tree_attr: { x64: 467, arm64: 467 },
  unshare: { x64: 272, arm64: 97 },
  setns: { x64: 308, arm64: 268 },
  open_by_handle_at: { x64: 304, arm64: 265 },
  // Rarely used parts of the kernel in which most flaws were found.
  bpf: { x64: 321, arm64: 280 },
  io_uring_setup: { x64: 425, arm64: 425 },
  io_uring_enter: { x64: 426, arm64: 426 },
  io_uring_register: { x64: 427, arm64: 427 },
  userfaultfd: { x64: 323, arm64: 282 },
  perf_event_open: { x64: 298, arm64: 241 },
  // Keys of the kernel belong to the user, not to the command.
  add_key: { x64: 248, arm64: 217 },
  request_key: { x64: 249, arm64: 218 },
  keyctl: { x64: 250, arm64: 219 },
  // Descriptors of other processes.
  pidfd_getfd: { x64: 438, arm64: 438 },
  // Administration of the machine.
  acct: { x64: 163, arm64: 89 },
  swapon: { x64: 167, arm64: 224 },
  swapoff: { x64: 168, arm64: 225 },
  reboot: { x64: 169, arm64: 142 },
  init_module: { x64: 175, arm64: 105 },
  delete_module: { x64: 176, arm64: 106 },
  finit_module: { x64: 313, arm64: 273 },
  quotactl: { x64: 179, arm64: 60 },
  quotactl_fd: { x64: 443, arm64: 443 },
  kexec_load: { x64: 246, arm64: 104 },
  kexec_file_load: { x64: 320, arm64: 294 },
} satisfies Record<string, Numbers>;
