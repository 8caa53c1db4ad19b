import { programName } from "./risky-programs.ts";
import type { Command } from "./shell/command.ts";

/** Programs, what they do beyond the sandbox, and the words with which they do it. */
type Row = readonly [programs: string, does: string, words?: RegExp];

/** The sandbox refuses what these do, or leaves it without effect, so that a line with one is not meant for it. */
const rows: readonly Row[] = [
  ["sudo doas su pkexec runuser chroot nsenter unshare setpriv", "acts as another user or in another place"],
  [
    "mount umount swapon swapoff losetup systemctl service systemd-run launchctl initctl rc-service update-rc.d loginctl hostnamectl timedatectl iptables ip6tables nft ufw sysctl modprobe insmod rmmod reboot shutdown halt poweroff useradd adduser usermod userdel groupadd visudo passwd chpasswd fdisk parted cryptsetup dpkg-reconfigure",
    "administers the machine",
  ],
  ["crontab at batch", "leaves something that runs later"],
  ["screen", "leaves something that runs later", /(^| )-\w*[dD]\w* /],
  [
    "tmux",
    "leaves something that runs later",
    /^(new|new-session|neww|new-window|respawn-pane|run-shell)\b.* ['"]?[^-\s]\S* \S/,
  ],
  ["kill killall5", "signals processes that are not its own", /(^| )(-1|1)( |$)/],
  [
    "ping ping6 traceroute mtr dig nslookup host whois nmap masscan tcpdump telnet ftp lftp nc ncat netcat socat mosh",
    "uses the network without the proxy",
  ],
  ["openssl", "uses the network without the proxy", /^s_(client|server)\b/],
  ["ssh", "forwards ports", /(^| )-\w*[RLDw]/],
  ["python", "serves files to other machines", /^-m (http\.server|SimpleHTTPServer)\b/],
  ["php", "serves files to other machines", /(^| )-S /],
  ["httpd serve http-server darkhttpd busybox", "serves files to other machines"],
];

const byProgram = new Map<string, Row[]>();
for (const row of rows)
  for (const name of row[0].split(" ")) byProgram.set(name, [...(byProgram.get(name) ?? []), row]);

/** Returns what commands do beyond the sandbox, as a predicate of their line; undefined if nothing is known. */
export function beyondTheWall(commands: readonly Command[]): string | undefined {
  for (const words of commands.flatMap(({ mentions }) => mentions)) {
    const [program = "", ...rest] = words;
    const name = programName(program);
    if (/^["']?(\$|`)/.test(program)) return "runs a program whose name it computes";
    const line = rest.join(" ");
    const row = byProgram.get(name)?.find(([, , pattern]) => pattern === undefined || pattern.test(line));
    if (row) return `runs ${name}, which ${row[1]}`;
  }
  return undefined;
}
