import { posix } from "node:path";
import { expect, test } from "vitest";
import { PermissionLayer } from "../../../gen/opencode/tool/v1/permission_pb.ts";
import type { ExpandedAsk, Layers } from "../../../src/policy/model.ts";
import { createPolicy } from "../../../src/policy/policy.ts";
import { fromConfig } from "../../../src/policy/rules.ts";

const policy = createPolicy({ guard: { dataDirectory: "/var/lib/toolgate" }, home: "/home/u" });
const layers = { wide: [], narrow: [] };
const directories = ["/", "/opt", "/srv", "/srv/p", "/srv/p/sub", "/srv/p/sub/deep"];
const files = {
  async resolve(path: string, cwd: string) {
    const absolute = posix.resolve(cwd, path);
    const external = absolute !== "/srv/p" && !absolute.startsWith("/srv/p/");
    const pattern = external ? absolute : posix.relative("/srv/p", absolute) || ".";
    return { absolute, pattern, external, isDirectory: directories.includes(absolute) };
  },
  async list(directory: string) {
    const file = (name: string) => ({ name, isDirectory: false, isLink: false });
    if (directory === "/srv/p") return [{ name: "sub", isDirectory: true, isLink: false }];
    return /^\/srv\/p\/sub\/?$/.test(directory) ? [".env", ".netrc", "a.ts", "b.ts", "c.md"].map(file) : [];
  },
};

const asks = (line: string) =>
  policy.expand({ permission: "bash", patterns: [line], cwd: "/srv/p/sub" }, layers, files) as Promise<ExpandedAsk[]>;

async function patterns(line: string): Promise<Record<string, readonly string[]>> {
  const asked = await asks(line);
  return Object.fromEntries(
    asked.map(({ permission, patterns, restricts }) => [restricts ? `${permission}?` : permission, patterns]),
  );
}

test("directories outside the workspace that a command names are a separate ask", async () => {
  expect(await patterns("prog a/b ../c ../../x/y --out=/etc/cron.d/z ../../x/w .. -I/usr/include/q")).toMatchObject({
    external_directory: ["/srv/x/*", "/etc/cron.d/*", "/usr/include/*"],
  });
});

test("a word that is a directory asks for that directory, and the root is /*", async () => {
  expect(await patterns("ls /opt /tmp/.. /x")).toMatchObject({ external_directory: ["/opt/*", "/*"] });
});

test("paths inside the workspace, and asks other than commands, add nothing", async () => {
  expect(await patterns("ls ../ a/b")).toEqual({ bash: ["ls ../ a/b"] });
  const read = { permission: "read", patterns: ["/etc/passwd"] };
  expect(await policy.expand(read, layers, files)).toEqual([read]);
});

test("the paths of git begin where -C leads", async () => {
  expect(await patterns("git -C deep commit -F x; git -C .. config -f y a.b c; git --git-dir=.. commit -F z")).toEqual(
    expect.objectContaining({ edit: ["y"], "read?": expect.arrayContaining(["sub/deep/x", "sub/z"]) }),
  );
  expect(await patterns("git -C ../.. -C q commit -F m; git -C /opt config -f n a.b c")).toMatchObject({
    external_directory: expect.arrayContaining(["/srv/q/*", "/opt/*"]),
    edit: ["/opt/n"],
  });
  expect(await patterns("git -C '' config -f y a.b c; git -C '' -C deep commit -F x")).toMatchObject({
    edit: ["sub/y"],
    "read?": expect.arrayContaining(["sub/deep/x"]),
  });
});

test("each command of a line is a pattern, in its canonical spelling", async () => {
  expect(await patterns(`CI=1  git 'commit'  -m "a b" 2>&1 | wc\t-l && echo "x $?"`)).toEqual({
    bash: ["CI=1 git commit -m 'a b'", "wc -l", 'echo "x $?"'],
  });
});

test("read rules restrict files that are read; files that are written need an edit rule", async () => {
  expect(await patterns("sort a.ts -o out.txt < in.txt; tee x.md")).toEqual({
    "read?": ["sub/a.ts", "sub/in.txt"],
    edit: ["sub/out.txt", "sub/x.md"],
    bash: ["sort a.ts -o out.txt < in.txt", "tee x.md"],
  });
});

test("a copy into a directory writes the file in that directory", async () => {
  expect(await patterns("cp a.ts deep")).toMatchObject({ edit: ["sub/deep/a.ts"] });
  expect(await patterns("cp -t deep a.ts ../b.ts")).toMatchObject({ edit: ["sub/deep/a.ts", "sub/deep/b.ts"] });
});

test("edit rules restrict files that a program removes or changes", async () => {
  expect(await patterns("rm -r deep")).toMatchObject({ "edit?": ["sub/deep"] });
});

test("a glob is judged by the files that it may match", async () => {
  expect(await patterns("cat *.ts .en[v]")).toMatchObject({
    "read?": ["sub/a.ts", "sub/b.ts", "sub/*.ts", "sub/.env", "sub/.en[v]"],
  });
  expect(await patterns("cat ../../*/x")).toMatchObject({ external_directory: ["/srv/*/*"] });
});

test("commands after a cd run in its directory", async () => {
  const [read, first, second] = await asks("cd deep && cat ../a.ts");
  expect(read).toMatchObject({ permission: "read", patterns: ["sub/a.ts"] });
  expect(first).toMatchObject({ cwd: "/srv/p/sub", patterns: ["cd deep"] });
  expect(second).toMatchObject({ cwd: "/srv/p/sub/deep", patterns: ["cat ../a.ts"] });
});

test("commands after a cd that may have failed are judged in each directory in which they may run", async () => {
  const directories = async (line: string) =>
    (await asks(line)).filter(({ permission }) => permission === "bash").map(({ cwd, patterns }) => [cwd, patterns]);
  expect(await directories("cd deep; ls")).toEqual([
    ["/srv/p/sub", ["cd deep", "ls"]],
    ["/srv/p/sub/deep", ["ls"]],
  ]);
  expect(await directories("cd deep && ls || pwd")).toEqual([
    ["/srv/p/sub", ["cd deep", "pwd"]],
    ["/srv/p/sub/deep", ["ls", "pwd"]],
  ]);
  expect(await directories("true || cd deep && ls")).toEqual([
    ["/srv/p/sub", ["true", "cd deep", "ls"]],
    ["/srv/p/sub/deep", ["ls"]],
  ]);
});

test("of the files below a directory that is read, those that rules restrict are asks", async () => {
  const rules = fromConfig({ read: { "*.ts": "ask" } }, "/home/u");
  const narrow = [{ layer: PermissionLayer.SESSION, rules }];
  const reads = async (line: string, layers: Layers) => {
    const asked = await policy.expand({ permission: "bash", patterns: [line], cwd: "/srv/p" }, layers, files);
    return asked.find(({ permission }) => permission === "read")?.patterns ?? [];
  };
  // A file of credentials too, whatever the rules.
  expect(await reads("grep -r x .", { wide: [], narrow })).toEqual([".", "sub/.netrc", "sub/a.ts", "sub/b.ts"]);
  expect(await reads("grep -r x .", { wide: [], narrow: [] })).toEqual(["."]);
  expect(await reads("grep -r --include=a* x sub", { wide: [], narrow })).toEqual(["sub", "sub/a.ts"]);
  expect(await reads("grep -r --exclude-dir=sub x", { wide: [], narrow })).toEqual(["."]);
  expect(await reads("find . -name 'b*' -exec cat {} +", { wide: [], narrow })).toEqual([".", "sub/b.ts", "{}"]);
});

test("a cd that leads out of the workspace is an ask, and so are paths that an opaque line mentions", async () => {
  expect(await patterns("cd ../.. && ls")).toMatchObject({ external_directory: ["/srv/*"] });
  expect(await patterns("for f in a; do cat ~/.ssh/id /opt/x; echo $f > out; done")).toMatchObject({
    external_directory: ["/home/u/.ssh/*", "/opt/*"],
    edit: ["sub/out"],
  });
});

test("an approval of a script is bound to its content", async () => {
  for (const line of ["bash x.sh", "python3 -B x.sh a", "./x.sh", "timeout 5 node x.sh"]) {
    const asked = await asks(line);
    expect(asked.flatMap(({ code }) => code?.files.map(({ absolute }) => absolute) ?? [])).toEqual(["/srv/p/sub/x.sh"]);
  }
});
