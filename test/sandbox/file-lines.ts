/** Generates command lines of programs that read and change files, on the names of the fixture; `next` generates numbers from 0 up to 1. */
export function fileLineMaker(next: () => number): () => string {
  const upTo = (count: number) => Math.floor(next() * count);
  const pick = <Item>(items: readonly Item[]): Item => items[upTo(items.length)] as Item;
  const often = (share: number, make: () => string) => (next() < share ? make() : "");

  const name = () =>
    pick([
      ...[".env", "prod.env", "secrets/key.txt", "secrets", "id_rsa", "conf/db.yaml", "locked/f.txt", "locked"],
      ...["public/a.txt", "public", "sub/x.txt", "sub", "list", "link", ".", "empty", "new.txt", "public/new"],
      ...["./.env", "public/../.env", "link/../secrets/key.txt", "sub/../../.env", "./secrets/", "public//a.txt"],
    ]);
  const glob = () =>
    pick([
      "*",
      ".e*",
      "*.env",
      "s*",
      "*/*",
      "p*/*.txt",
      "prod[[:punct:]]env",
      "?d_rsa",
      "[.]env",
      "{.env,list}",
      "*/",
      ".*",
    ]);
  const spelled = (path: string) =>
    pick([
      path,
      path,
      path,
      `"${path}"`,
      `'${path}'`,
      `./${path}`,
      `$PWD/${path}`,
      path.replace("e", "'e'"),
      `\\${path}`,
    ]);
  const file = () => (next() < 0.25 ? glob() : spelled(name()));
  const files = () => `${file()}${often(0.4, () => ` ${file()}`)}`;
  const option = (options: string) => {
    const all = options.split(" ").filter((one) => one !== "");
    return all.length === 0 ? "" : `${often(0.6, () => ` ${pick(all)}`)}${often(0.3, () => ` ${pick(all)}`)}`;
  };
  const reader = (program: string, options: string) => () => `${program}${option(options)} ${files()}`;

  const readers = [
    reader("cat", "-n -A -- -s"),
    reader("head", "-n1 -c9 -q --lines=2 -n 3"),
    reader("tail", "-n1 -c9 -v --bytes=4"),
    reader("sort", "-r -u -k2 --reverse --files0-from=list -o new.txt -m"),
    reader("uniq", "-c -d"),
    reader("wc", "-l -c --files0-from=list --lines"),
    reader("cut", "-c1-3 -d: -f1 -b2"),
    reader("nl", "-ba"),
    reader("tac", "-b"),
    reader("rev", ""),
    reader("od", "-c -An -x"),
    reader("strings", "-n2 -a @list"),
    reader("base64", "-w0 -d"),
    reader("md5sum", "-b -c --tag"),
    reader("paste", "-s -d,"),
    reader("comm", "-1 -23"),
    reader("cmp", "-l -b"),
    reader("fold", "-w3"),
    reader("xxd", "-p"),
    reader("file", "-b -f list"),
    reader("stat", "-c%n -t"),
    reader("ls", "-la -R -d -1"),
    reader("du", "-sh -a"),
  ];
  const searches = [
    () =>
      `grep${option("-r -i -n -ir -he. -rn --include=*.env -f.env --exclude-dir=sub -L -c -R --recursive --dir=recurse -zo")} ${pick(["T", "SECRET", "''", "."])} ${often(0.8, files)}`,
    () => `grep -e${pick(["T", " ."])}${option("-r -s -f")} ${files()}`,
    () =>
      `find ${file()}${option("-type f -name *.env -maxdepth 1 -newer .env -exec cat {} + -exec cat {} ; -print -L -follow")}`,
    () => `diff${option("-r -u -N -Nr --to-file=empty -q -y")} ${file()} ${file()}`,
    () => `awk '${pick(["{print}", "1", "END{print NR}", '{while((getline l < ".env")>0) print l}'])}' ${files()}`,
    () =>
      `sed${option("-n -e p -i -E -s")} ${pick(["p", "1p", "'s/T/x/'", "'r .env'", "'w new.txt'", "'1e cat .env'"])} ${files()}`,
    () => `tar${option("-c -cf - cf -C -z --exclude=sub -T")} ${files()}`,
    () => `tar -cf - ${often(0.5, () => `-C ${file()} `)}${files()}`,
    () => `xargs${option("-n1 -a list -0 -I{}")} ${pick(["cat", "cat {}", "grep T"])} < ${pick(["list", file()])}`,
    () => `dd${pick(["", " bs=4", " status=none"])} if=${file()}`,
  ];
  const changes = [
    () => `cp${option("-r -a -t -T -l -s -R --parents -L")} ${files()} ${file()}`,
    () => `mv${option("-f -t -T -n")} ${file()} ${file()}`,
    () => `ln${option("-s -f -sfn -r -t")} ${file()} ${file()}`,
    () => `rm${option("-r -f -rf -d")} ${files()}`,
    () => `touch${option("-c -r .env -d now")} ${files()}`,
    () => `tee${option("-a")} ${files()}`,
    () => `chmod${option("-R --reference=list")} ${pick(["644", "u+w", "000"])} ${files()}`,
    () => `mkdir${option("-p -m700")} ${files()}`,
    () => `truncate -s${pick(["0", "1"])} ${files()}`,
    () => `install${option("-m600 -D -t")} ${file()} ${file()}`,
    () => `shuf${option("-e -o new.txt -n1 -eo")} ${files()}`,
    () => `split -l1 ${file()} ${file()}`,
  ];
  const revision = () => pick(["HEAD", "HEAD~1", "HEAD~2", "main", ":0", "@{0}", "stash"]);
  const git = [
    () => `git show ${revision()}${often(0.4, () => `:${name()}`)}${often(0.3, () => ` -- ${file()}`)}`,
    () =>
      `git log${option("-p -S T --stat --oneline -L1,2:conf/db.yaml -1 --all -u -c -G T --name-only")}${often(0.3, () => ` -- ${file()}`)}`,
    // Not `--stat`: git reads files to compare them, and prints nothing of what they hold.
    () => `git diff${option("--cached -U1 --no-index --name-only -R")} ${often(0.5, revision)} ${often(0.4, file)}`,
    () => `git cat-file -p ${revision()}${often(0.7, () => `:${name()}`)}`,
    () => `git grep${option("-n -i --cached --no-index --untracked -h")} T ${often(0.4, revision)}`,
    () => `git blame${option("-s -l")} ${often(0.3, revision)} ${file()}`,
    () =>
      `git ${pick(["status", "status -sb", "ls-files -s", "ls-tree -r HEAD", "branch -a", "rev-parse HEAD", "tag", "stash", "stash show -p", "archive HEAD~1", "bundle create - --all", "format-patch --stdout -2", "fast-export HEAD", "describe --always"])}`,
    () =>
      `git ${pick(["checkout", "restore", "reset --hard", "checkout -q", "restore -s"])} ${revision()}${often(0.4, () => ` -- ${file()}`)}`,
    () => `git ${pick(["rm", "rm --cached", "mv"])} ${file()}${often(0.3, () => ` ${file()}`)}`,
    () => `git -C ${file()} ${pick(["show HEAD~1", "log -p", "status"])}`,
  ];
  const command = (): string => {
    const made = pick(pick([readers, readers, searches, changes, git]))();
    return made.replaceAll(/ +/g, " ").trim();
  };
  const wrapped = (): string => {
    const inner = command();
    return pick([
      inner,
      inner,
      inner,
      inner,
      `env ${inner}`,
      `timeout 1 ${inner}`,
      `command ${inner}`,
      `bash -c '${inner.replaceAll("'", `'\\''`)}'`,
      `cd ${pick(["sub", "public", "secrets", "link", ".."])} && ${inner}`,
      `for one in ${files()}; do cat "$one"; done`,
      `echo "$(${inner})"`,
      `while read -r line; do echo "$line"; done < ${file()}`,
      `x=${spelled(name())}; cat $x`,
    ]);
  };
  const redirect = () => pick([`> ${file()}`, `>> ${file()}`, `< ${file()}`, "2>&1", "2>/dev/null", `<<< ${file()}`]);
  return () => {
    const first = `${wrapped()}${often(0.15, () => ` ${redirect()}`)}`;
    return `${first}${often(0.3, () => `${pick([" | ", " && ", "; ", " || "])}${wrapped()}`)}`;
  };
}
